// A short convolution over the tokens of a sequence: Engram applies it to its gated values.
#pragma once

#include <tiffin/activation/silu.hpp>
#include <tiffin/call/row_history.hpp>
#include <tiffin/executor/checked_executor.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/tensor.hpp>
#include <tiffin/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

TIFFIN_BEGIN

// Per feature, over the token and those before it in its sequence:
//
//     u_t = rms(v_t),   y_t = v_t + silu(sum over j < K of w[j] u_(t - (K - 1 - j) dilation))
//
// where rows before the sequence are 0. The caller owns the past rows, a row_history per sequence: any number of
// sequences in one call, rows taken back after a rejected speculation, a new sequence after an end-of-sequence id.
// Shapes: v, y (T, width), y may be v; `conv.weight` (width, K) or (width, 1, K), the token itself last;
//   `conv_norm.weight` (width).
// Numerics: the sum of squares in double, the rest in f32, j ascending: bit-identical at any batch size.
// Errors: errc::missing_tensor, shape, dtype, option (a dilation of 0, or one whose past rows overflow 64-bit sizes)
//   when it is prepared; errc::size at a call, before y is written or a history has changed.
// Threads: immutable; calls with different histories may run at the same time. Cost: 2 K + 10 FLOPs per value, K rows
//   read; a task per worker, each of whole sequences; no allocation.
// Source: Engram; docs/layers.md#engram.
//
//     auto convolution = short_convolution::prepare(weights, 3).or_throw();   // dilation N = 3
//     std::vector<row_history> past(sequences, convolution.make_history());
//     engram_layer(h, {.per_layer_input = e}, v);
//     convolution(v, sequence_of_token, past, v).or_throw();
class short_convolution {
public:
    // `prefix`: that of the tensors' names; `given` may hold other tensors too.
    static result<short_convolution> prepare(const weights& given, std::size_t dilation,
                                             float eps = rms{}.eps, const std::string& prefix = "") {
        if (dilation == 0) return failure(errc::option, "dilation", "is 0; it is 1 or more");
        const auto find = [&](const char* name, const char* shape) -> result<const tensor_view*> {
            const auto* const t = given.find(prefix + name);
            if (t == nullptr)
                return failure(errc::missing_tensor, prefix + name, "missing; it has shape ", shape);
            if (is_integer(t->type))
                return failure(errc::dtype, prefix + name, "has dtype ", name_of(t->type),
                               "; it has numbers");
            return t;
        };
        const auto conv = find("conv.weight", "(width, taps)");
        if (!conv) return conv.failure();
        const auto norm = find("conv_norm.weight", "(width)");
        if (!norm) return norm.failure();
        const shape& of = (*conv)->shape;
        const bool flat = of.rank() == 2, as_published = of.rank() == 3 && of[1] == 1;
        if ((!flat && !as_published) || of.elements() == 0)
            return failure(errc::shape, prefix + "conv.weight", "has shape ", to_string(of),
                           "; it must be (width, taps) or (width, 1, taps)");
        if ((*norm)->shape != shape(of[0]))
            return failure(errc::shape, prefix + "conv_norm.weight", "has shape ", to_string((*norm)->shape),
                           "; it must be (", of[0], "), as conv.weight has ", of[0], " features");
        std::size_t numbers = dilation;  // of a sequence's past rows
        for (const std::size_t more : {of[of.rank() - 1], of[0], sizeof(float)})
            if (__builtin_mul_overflow(numbers, more, &numbers))
                return failure(errc::option, "dilation", "is ", dilation, "; the bytes of a past of ",
                               of[of.rank() - 1], " times as many rows of ", of[0], " overflow 64 bits");
        return short_convolution(**conv, **norm, dilation, eps);
    }

    [[nodiscard]] std::size_t width() const noexcept { return width_; }
    // The history of one sequence, of which `undoable` tokens may be taken back.
    [[nodiscard]] row_history make_history(std::size_t undoable = 0) const {
        return {(taps_ - 1) * dilation_, width_, undoable};
    }

    // The errors of a call with these arguments.
    [[nodiscard]] status check(const matrix_view<const float>& v, std::span<const std::uint32_t> sequence_of,
                               std::span<const row_history> histories, const matrix_view<float>& y) const {
        if (v.cols != width_ || y.cols != width_ || y.rows != v.rows)
            return failure(errc::size, v.cols != width_ ? "v" : "y", "is (",
                           v.cols != width_ ? v.rows : y.rows, ", ", v.cols != width_ ? v.cols : y.cols,
                           "); it must be (", v.rows, ", ", width_, ")");
        if (sequence_of.size() != v.rows)
            return failure(errc::size, "sequence_of", "are ", sequence_of.size(), " for ", v.rows, " rows");
        for (std::size_t t = 0; t < v.rows; ++t) {
            if (sequence_of[t] >= histories.size())
                return failure(errc::size, "sequence_of[" + std::to_string(t) + "]", "is ", sequence_of[t],
                               "; there are ", histories.size(), " histories");
            const row_history& past = histories[sequence_of[t]];
            if (past.width() != width_ || past.rows() < (taps_ - 1) * dilation_)
                return failure(errc::size, "histories[" + std::to_string(sequence_of[t]) + "]", "keeps ",
                               past.rows(), " rows of ", past.width(), "; the convolution reads ",
                               (taps_ - 1) * dilation_, " of ", width_);
        }
        return {};
    }
    // Token t belongs to, and is added to, histories[sequence_of[t]]; the tokens of a sequence are in order.
    status operator()(const matrix_view<const float>& v, std::span<const std::uint32_t> sequence_of,
                      std::span<row_history> histories, const matrix_view<float>& y,
                      executor_ref execute = serially) const {
        if (status s = check(v, sequence_of, histories, y); !s) return s;
        const std::size_t workers =
            std::max<std::size_t>(1, std::min(execute.concurrency(), histories.size()));
        const auto work = [&](std::size_t worker) noexcept {
            for (std::size_t t = 0; t < v.rows; ++t)
                if (sequence_of[t] % workers == worker)
                    one_token(v.row(t), histories[sequence_of[t]], y.row(t));
        };
        return detail::run_each_once(execute, workers, task_ref(work));
    }

private:
    short_convolution(const tensor_view& conv, const tensor_view& norm, std::size_t dilation, float eps)
        : width_(conv.shape[0]),
          taps_(conv.shape[conv.shape.rank() - 1]),
          dilation_(dilation),
          norm_{eps},
          weight_(taps_ * width_),
          norm_weight_(width_) {
        for (std::size_t i = 0; i < taps_ * width_; ++i)
            weight_[i % taps_ * width_ + i / taps_] = load_as_f32(conv, i);
        for (std::size_t i = 0; i < width_; ++i) norm_weight_[i] = load_as_f32(norm, i);
    }
    void one_token(const float* v, row_history& past, float* y) const noexcept {
        double squares = 0;
        for (std::size_t j = 0; j < width_; ++j)
            squares += static_cast<double>(v[j]) * static_cast<double>(v[j]);
        const auto scale = static_cast<float>(norm_.scale(squares, static_cast<double>(width_)));
        float* const u = past.add();
        for (std::size_t j = 0; j < width_; ++j) u[j] = norm_(v[j], scale, norm_weight_[j]);
        constexpr std::size_t piece = 256;
        float sums[piece];
        for (std::size_t first = 0; first < width_; first += piece) {
            const std::size_t n = std::min(piece, width_ - first);
            std::fill_n(sums, n, 0.0f);
            for (std::size_t tap = 0; tap < taps_; ++tap) {
                const float* const row = past.before((taps_ - 1 - tap) * dilation_ + 1);
                if (row == nullptr) continue;
                const float* const w = weight_.data() + tap * width_ + first;
                for (std::size_t j = 0; j < n; ++j) sums[j] += w[j] * row[first + j];
            }
            for (std::size_t j = 0; j < n; ++j) y[first + j] = v[first + j] + silu{}(sums[j]);
        }
    }

    std::size_t width_;
    std::size_t taps_;
    std::size_t dilation_;
    rms norm_;
    std::vector<float> weight_;  // (taps, width)
    std::vector<float> norm_weight_;
};

TIFFIN_END
