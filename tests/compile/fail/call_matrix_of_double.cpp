// expect: tiffin: an Eigen matrix given
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include <Eigen/Core>

#include <vector>

using layer = tiffin::layer<tiffin::mlp, tiffin::reference<>>;

#ifdef TIFFIN_EXPECT_PASS
using number = float;
#else
using number = double;
#endif

void call(layer& block, const Eigen::Matrix<number, -1, -1, Eigen::RowMajor>& x, std::vector<float>& y) {
    block(x, {}, y);
}
