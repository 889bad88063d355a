// expect: tiffin: a matrix_view given|invalid conversion from .const |no matching .*matrix_view<float>
// tiffin has no sentence of its own here yet: the compiler's is accepted beside it.
#include <tiffin/backend/reference/reference.hpp>
#include <tiffin/layers.hpp>

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
