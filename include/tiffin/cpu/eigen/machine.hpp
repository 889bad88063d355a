// The machine of the eigen backend: products by Eigen, everything else one float at a time.
#pragma once

#include <tiffin/bind/preparation.hpp>
#include <tiffin/bind/stored_numbers.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/block_sink.hpp>
#include <tiffin/cpu/product_sums.hpp>
#include <tiffin/cpu/stage.hpp>
#include <tiffin/format/number_format.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

TIFFIN_BEGIN

namespace eigen_detail {

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using matrix_map = Eigen::Map<matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
using const_matrix_map = Eigen::Map<const matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

inline Eigen::Index index(std::size_t i) noexcept {
    return static_cast<Eigen::Index>(i);
}

// out = x w^T in pieces small enough that Eigen packs them on the stack and not on the heap.
template <class Out>
void multiply(const const_matrix_map& x, const const_matrix_map& w, Out& out) {
    // Fewer than 100000 products per piece: with OpenMP, Eigen splits larger ones among threads.
    constexpr Eigen::Index side = 32, depth = 96;
    out.setZero();
    for (Eigen::Index t = 0; t < x.rows(); t += side)
        for (Eigen::Index j = 0; j < w.rows(); j += side)
            for (Eigen::Index k = 0; k < x.cols(); k += depth) {
                const Eigen::Index tokens = std::min(side, x.rows() - t);
                const Eigen::Index outputs = std::min(side, w.rows() - j);
                const Eigen::Index inputs = std::min(depth, x.cols() - k);
                out.block(t, j, tokens, outputs).noalias() +=
                    x.block(t, k, tokens, inputs) * w.block(j, k, outputs, inputs).transpose();
            }
}

struct activations {
    const float* data;
    std::size_t tokens;
    std::size_t stride;

    [[nodiscard]] const float* row(std::size_t token) const noexcept { return data + token * stride; }
};

// Weights (outputs, inputs) times the same activations, each task a range of the outputs.
class eigen_products {
public:
    eigen_products(std::size_t outputs, std::size_t inputs, std::size_t count, const number_formats& = {})
        : outputs_(outputs), inputs_(inputs), count_(count) {}
    void pack(std::size_t, const tensor_view& weight, const preparation& how) {
        weights_.emplace_back(weight);
        how.hold(weights_.back().own_bytes());
    }

    [[nodiscard]] std::size_t scratch_numbers(std::size_t tokens, std::size_t) const noexcept {
        return count_ * tokens * outputs_;
    }

    void run(const activations& in, float* scratch, std::size_t most_workers, const executor_ref& execute,
             const cpu_detail::epilogue_ref& finish) const {
        const std::size_t tasks = std::min(most_workers, (outputs_ + 63) / 64);
        const auto work = [&](std::size_t i) noexcept {
            const std::size_t first = outputs_ * i / tasks, last = outputs_ * (i + 1) / tasks;
            for (std::size_t m = 0; m < count_; ++m) {
                const const_matrix_map x(in.data, index(in.tokens), index(inputs_),
                                         Eigen::OuterStride<>(index(in.stride)));
                const const_matrix_map w(weights_[m].floats() + first * inputs_, index(last - first),
                                         index(inputs_), Eigen::OuterStride<>(index(inputs_)));
                matrix_map product(scratch + m * in.tokens * outputs_ + first, index(in.tokens),
                                   index(last - first), Eigen::OuterStride<>(index(outputs_)));
                multiply(x, w, product);
            }
            // The sums of a weight: a matrix (tokens, outputs).
            const std::size_t plane = in.tokens * outputs_;
            for (std::size_t j = first; j < last; j += cpu_detail::finished_at_once) {
                const std::size_t outputs = std::min(cpu_detail::finished_at_once, last - j);
                const auto sums_of = [&](std::size_t weight) {
                    return cpu_detail::weight_sums{scratch + weight * plane + j, outputs, outputs_, 0};
                };
                finish(0, in.tokens, j, outputs, {sums_of(0), plane, 2 * plane, sums_of(count_ - 1)});
            }
        };
        execute(tasks, task_ref(work));
    }

private:
    std::size_t outputs_;
    std::size_t inputs_;
    std::size_t count_;
    std::vector<stored_numbers> weights_;
};

struct machine {
    using reg = float;
    using activations = eigen_detail::activations;
    using products = eigen_products;
    using number = float;
    using wide = double;
    static constexpr std::size_t lane_count = 1;
    template <detail::node_role Role>
    static constexpr const void* role = &cpu_detail::functions_of<machine, Role>::value;

    static products exact_products(std::size_t outputs, std::size_t inputs) { return {outputs, inputs, 1}; }

    struct buffer {
        float* data;
        std::size_t tokens;
        std::size_t features;

        static constexpr std::size_t numbers(std::size_t tokens, std::size_t features) noexcept {
            return tokens * features;
        }
        [[nodiscard]] activations view() const noexcept { return {data, tokens, features}; }
    };

    static bool rounds_alike(const products&, const products&) noexcept { return false; }
    static const float* input_at(const activations& in, std::size_t token, std::size_t feature) noexcept {
        return in.row(token) + feature;
    }
    static float load(const float* from, std::size_t) noexcept { return *from; }
    static float load_aligned(const float* from) noexcept { return *from; }
    static float load_row(const float* from, std::size_t) noexcept {
        float number;
        std::memcpy(&number, from, sizeof number);  // at any alignment
        return number;
    }
    static void store(float from, float* to, std::size_t) noexcept { *to = from; }
    static float multiply_add(float a, float b, float c) noexcept { return a * b + c; }
    template <class Formula, class... Numbers>
    static float apply(const Formula& formula, Numbers... in) {
        return static_cast<float>(formula(in...));
    }
    static float add_product(float a, float b, std::size_t, float sums) noexcept { return a * b + sums; }
    static float sum(float v) noexcept { return v; }
    static float* place(const buffer& to, std::size_t token, std::size_t feature,
                        std::size_t& step) noexcept {
        step = to.features;
        return to.data + token * to.features + feature;
    }
    static void put_rounded(const cpu_detail::value_block&, const buffer&) noexcept {}
    static void copy_token(const activations& from, std::size_t token, const buffer& to,
                           std::size_t i) noexcept {
        std::memcpy(to.data + i * to.features, from.row(token), to.features * sizeof(float));
    }
    static constexpr std::size_t input_numbers(std::size_t tokens, std::size_t features) noexcept {
        return tokens * features;
    }
    // Selected rows of x are gathered into `memory`; otherwise x is read in place.
    static activations inputs(const call_arguments& call, const matrix_view<const float>& x, float* memory) {
        if (call.rows == nullptr) return {x.data, call.tokens, x.stride};
        const buffer to{memory, call.tokens, x.cols};
        const activations from{x.data, x.rows, x.stride};
        for (std::size_t t = 0; t < call.tokens; ++t) copy_token(from, call.row(t), to, t);
        return to.view();
    }
};

}  // namespace eigen_detail

TIFFIN_END
