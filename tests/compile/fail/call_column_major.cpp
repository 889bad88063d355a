// expect: tiffin: a matrix given to a layer is column-major; tokens are rows here: use Eigen::Matrix<float
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include <Eigen/Core>

#include <vector>

using layer = tiffin::layer<tiffin::mlp, tiffin::reference<>>;

#ifdef TIFFIN_EXPECT_PASS
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
#else
using matrix = Eigen::MatrixXf;
#endif

void call(layer& block, const matrix& x, std::vector<float>& y) {
    block(x, {}, y);
}
