// expect: tiffin: an Eigen matrix given
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

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
