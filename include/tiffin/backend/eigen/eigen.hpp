// The portable backend: products by Eigen, formulas as plain loops.
#pragma once

#include <tiffin/backend/backend.hpp>
#include <tiffin/backend/held_numbers.hpp>
#include <tiffin/format/f32.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
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
    // A piece below 100000 products: where OpenMP is on, Eigen would share out a larger one among threads.
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

// The place (token, feature) of a source in the eigen backend.
template <class Source>
struct scalar_place {
    const float* const* products;  // of this token, one row a projection
    const float* const* rows;      // of this token, one a table
    const held_numbers<f32>* vectors;
    std::size_t feature;

    template <std::size_t Slot, class Tensor>
    [[nodiscard]] float value() const noexcept {
        constexpr std::size_t ordinal = ordinal_of<Source>(Slot);
        if constexpr (Tensor::kind == tensor_kind::projection) {
            return products[ordinal][feature];
        } else if constexpr (Tensor::kind == tensor_kind::table) {
            return rows[ordinal][feature];
        } else {
            const float* const v = vectors[ordinal].data();
            return v ? v[feature] : 0.0f;
        }
    }
};

// A source evaluated for all tokens: each task multiplies and finishes a range of the outputs.
template <source_policy Source>
class stage {
public:
    static constexpr std::size_t projections = count_of<Source>(tensor_kind::projection);
    static constexpr std::size_t tables = count_of<Source>(tensor_kind::table);

    stage(const Source& source, std::span<const tensor_view> tensors, std::size_t outputs, std::size_t inputs)
        : source_(source), outputs_(outputs), inputs_(inputs) {
        static constexpr auto specs = specs_of<Source>("");
        for (std::size_t i = 0; i < specs.size(); ++i) {
            auto& held = specs[i].kind == tensor_kind::projection ? weights_
                         : specs[i].kind == tensor_kind::table    ? tables_
                                                                  : vectors_;
            held.emplace_back(tensors[i]);
        }
    }

    // Floats for the products of a call.
    [[nodiscard]] std::size_t scratch_numbers(std::size_t tokens) const noexcept {
        return projections * tokens * outputs_;
    }

    void run(matrix_view<const float> x, const std::int32_t* ids, matrix_view<float> out, float* scratch,
             std::size_t workers, const executor_ref& execute) const {
        const std::size_t tasks = std::min(workers, (outputs_ + 63) / 64);
        const auto work = [&](std::size_t i) noexcept {
            const std::size_t first = outputs_ * i / tasks, last = outputs_ * (i + 1) / tasks;
            for (std::size_t m = 0; m < projections; ++m) {
                const const_matrix_map in(x.data, index(x.rows), index(x.cols),
                                          Eigen::OuterStride<>(index(x.stride)));
                const const_matrix_map w(weights_[m].data() + first * inputs_, index(last - first),
                                         index(inputs_), Eigen::OuterStride<>(index(inputs_)));
                matrix_map product(scratch + m * x.rows * outputs_ + first, index(x.rows),
                                   index(last - first), Eigen::OuterStride<>(index(outputs_)));
                multiply(in, w, product);
            }
            for (std::size_t t = 0; t < x.rows; ++t) finish(ids, out, scratch, t, first, last);
        };
        execute(tasks, task_ref(work));
    }

private:
    void finish(const std::int32_t* ids, const matrix_view<float>& out, const float* scratch, std::size_t t,
                std::size_t first, std::size_t last) const noexcept {
        const float* products[projections + 1];
        const float* rows[tables + 1];
        for (std::size_t m = 0; m < projections; ++m) products[m] = scratch + (m * out.rows + t) * outputs_;
        for (std::size_t n = 0; n < tables; ++n)
            rows[n] = tables_[n].data() + static_cast<std::size_t>(ids[t]) * outputs_;
        for (std::size_t j = first; j < last; ++j)
            out.row(t)[j] = evaluate(source_, scalar_place<Source>{products, rows, vectors_.data(), j});
    }

    [[no_unique_address]] Source source_;
    std::size_t outputs_;
    std::size_t inputs_;
    std::vector<held_numbers<f32>> weights_;
    std::vector<held_numbers<f32>> tables_;
    std::vector<held_numbers<f32>> vectors_;
};

}  // namespace eigen_detail

// Readable and portable: every machine that Eigen knows.
// Numerics: f32; the order of a product's additions is Eigen's and differs with the number of
//   tokens, so the bitwise promise of `simd` does not hold here.
// Cost: products go through a (T, d_ff) buffer each; weights in f32 are read in place.
// Linking: Eigen's own functions carry no mark of the instruction set. In a program whose translation
//   units are compiled for different ones, use this backend in one of them only.
struct eigen {
    template <block_policy Block>
    class engine {
    public:
        engine(const Block& block, const binding& bound)
            : d_model_(bound.d_model),
              d_ff_(bound.d_ff),
              norm_(block.output.norm),
              hidden_(block.hidden, hidden_part<Block>(bound), d_ff_, d_model_),
              output_(block.output.source, output_part<Block>(bound), d_model_, d_ff_),
              norm_weight_(norm_part<Block>(bound)) {}

        [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t) const noexcept {
            return (tokens * d_ff_ + scratch_numbers(tokens)) * sizeof(float);
        }

        void run(const call_arguments& call) const {
            const std::size_t tokens = call.x.rows;
            auto* const hidden = reinterpret_cast<float*>(call.workspace);
            float* const scratch = hidden + tokens * d_ff_;
            const matrix_view<float> h(hidden, tokens, d_ff_);
            hidden_.run(call.x, call.token_ids, h, scratch, call.workers, call.execute);
            output_.run(h, call.token_ids, call.y, scratch, call.workers, call.execute);
            if constexpr (has_norm<Block>)
                for (std::size_t t = 0; t < tokens; ++t) normalise(call.y.row(t));
        }

    private:
        [[nodiscard]] std::size_t scratch_numbers(std::size_t tokens) const noexcept {
            return std::max(hidden_.scratch_numbers(tokens), output_.scratch_numbers(tokens));
        }
        void normalise(float* y) const noexcept {
            const Eigen::Map<const Eigen::VectorXf> row(y, eigen_detail::index(d_model_));
            const float scale = norm_.scale(row.squaredNorm(), static_cast<float>(d_model_));
            for (std::size_t j = 0; j < d_model_; ++j) {
                const float weight = output_norm<Block>::weighted ? norm_weight_.data()[j] : 1.0f;
                y[j] = norm_(y[j], scale, weight);
            }
        }

        std::size_t d_model_;
        std::size_t d_ff_;
        [[no_unique_address]] output_norm<Block> norm_;
        eigen_detail::stage<hidden_source<Block>> hidden_;
        eigen_detail::stage<output_source<Block>> output_;
        held_numbers<f32> norm_weight_;
    };
};

TIFFIN_END
