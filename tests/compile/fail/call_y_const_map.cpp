// expect: tiffin: an Eigen matrix given|invalid conversion from .const |no matching .*matrix_view<float>
// tiffin has no sentence of its own here yet: the compiler's is accepted beside it.
#include <tiffin/backend/reference/reference.hpp>
#include <tiffin/layers.hpp>

#include <Eigen/Core>

#include <vector>

using layer = tiffin::layer<tiffin::mlp, tiffin::reference<>>;

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
#ifdef TIFFIN_EXPECT_PASS
using map = Eigen::Map<matrix>;
#else
using map = Eigen::Map<const matrix>;
#endif

void call(layer& block, const std::vector<float>& x, map y) {
    block(x, {}, y);
}
