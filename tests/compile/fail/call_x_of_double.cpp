// expect: tiffin: an argument of a layer.s call is neither a contiguous range of float .* nor an Eigen
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include <vector>

using layer = tiffin::layer<tiffin::mlp, tiffin::reference<>>;

#ifdef TIFFIN_EXPECT_PASS
using numbers = std::vector<float>;
#else
using numbers = std::vector<double>;
#endif

void call(layer& block, const numbers& x, std::vector<float>& y) {
    block(x, {}, y);
}
