// Eigen's matrices as the examples hold activations: a row per token, one after the other in memory.
#pragma once

#include <Eigen/Core>

#include <cstddef>

using row_matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using row_vector = Eigen::Matrix<float, 1, Eigen::Dynamic>;

inline Eigen::Index as_index(std::size_t i) {
    return static_cast<Eigen::Index>(i);
}
