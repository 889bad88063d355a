// expect: tiffin: a matrix_view given
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include <vector>

using layer = tiffin::layer<tiffin::mlp, tiffin::reference<>>;

#ifdef TIFFIN_EXPECT_PASS
using view = tiffin::matrix_view<float>;
#else
using view = tiffin::matrix_view<const float>;
#endif

void call(layer& block, const std::vector<float>& x, view y) {
    block(x, {}, y);
}
