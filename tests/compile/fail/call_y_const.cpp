// expect: tiffin: an argument of a layer.s call is neither a contiguous range of float .* nor an Eigen
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include <vector>

using layer = tiffin::layer<tiffin::mlp, tiffin::reference<>>;

#ifdef TIFFIN_EXPECT_PASS
using result = std::vector<float>;
#else
using result = const std::vector<float>;
#endif

void call(layer& block, const std::vector<float>& x, result& y) {
    block(x, {}, y);
}
