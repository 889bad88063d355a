// Products with Eigen on the threads of an executor, and RMS norms.
#pragma once

#include <tiffin/executor/executor.hpp>
#include <tiffin/norm/rms.hpp>

#include "model_file.hpp"

#include <algorithm>
#include <cstddef>

// Calls part(first, count) for about equal parts of [0, n), one per thread, in whole multiples of `step`.
template <class Part>
void in_parts(tiffin::executor_ref execute, std::size_t n, std::size_t step, const Part& part) {
    const std::size_t threads = std::max<std::size_t>(execute.concurrency(), 1);
    const std::size_t each = ((n + threads - 1) / threads + step - 1) / step * step;
    const auto task = [&](std::size_t i) {
        const std::size_t first = std::min(i * each, n);
        if (first < n) part(as_index(first), as_index(std::min(each, n - first)));
    };
    execute(threads, tiffin::task_ref(task));
}

// y = x w^T + bias, w (out, in); no bias where there is none.
template <class X>
void multiply(const X& x, const row_matrix& w, const row_vector& bias, row_matrix& y,
              tiffin::executor_ref execute) {
    y.resize(x.rows(), w.rows());
    in_parts(execute, static_cast<std::size_t>(w.rows()), 16, [&](Eigen::Index first, Eigen::Index count) {
        auto to = y.middleCols(first, count);
        if (x.rows() == 1)  // a matrix times a vector
            to.row(0).transpose().noalias() = w.middleRows(first, count) * x.row(0).transpose();
        else
            to.noalias() = x * w.middleRows(first, count).transpose();
        if (bias.size() > 0) to.rowwise() += bias.segment(first, count);
    });
}

// Each row of x as rms(x) * weight. x and y may be the same.
template <class X, class Y>
void normalise(const X& x, const row_vector& weight, float eps, Y&& y) {
    for (Eigen::Index t = 0; t < x.rows(); ++t) {
        const double squares = x.row(t).template cast<double>().squaredNorm();
        const double scale = tiffin::rms{eps}.scale(squares, static_cast<double>(x.cols()));
        y.row(t) = x.row(t).cwiseProduct(weight) * static_cast<float>(scale);
    }
}
