// The short convolution over a sequence, where it learns.
#pragma once

#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/call/short_convolution.hpp>
#include <tiffin/executor/checked_executor.hpp>
#include <tiffin/train/trainable_layer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// short_convolution over whole sequences, each from its first token, and its gradients.
//
//     auto convolution = trainable_convolution<float>::prepare(weights, 3).or_throw();
//     layer.forward(h, {.per_layer_input = e}, v);
//     convolution.forward(v, sequence_of_token, y).or_throw();
//     convolution.backward(dy, dv).or_throw();     // gradients accumulate until clear_gradients()
//     layer.backward(dv, {.x = dh});
//
// Shapes: v, y, dy, dv (T, width); the tensors are those of short_convolution, in Number. y may be v, and dv dy.
// Lifetime: every call reads the tensors from the memory they were given in: an optimizer writes to it between steps.
// Numerics: in Number, sums of squares in double; bit-identical for any number of threads.
// Errors: those of short_convolution::prepare, and errc::dtype for tensors that are not of Number; of a call errc::size,
//   found before anything is written: a backward without its forward, too; errc::executor.
// Threads: one call at a time. Cost: 2 K + 10 FLOPs per value forward, about twice that backward, which reads three rows per
//   token that forward kept; allocates where a call has more tokens than every one before.
// Source: Engram; docs/layers.md#engram.
template <class Number>
class trainable_convolution {
public:
    static result<trainable_convolution> prepare(const weights& given, std::size_t dilation,
                                                 float eps = rms{}.eps, const std::string& prefix = "") {
        if (const auto checked = short_convolution::prepare(given, dilation, eps, prefix); !checked)
            return checked.failure();
        constexpr dtype type = sizeof(Number) == sizeof(double) ? dtype::f64 : dtype::f32;
        trainable_convolution made;
        for (const char* const name : {"conv.weight", "conv_norm.weight"}) {
            const tensor_view& t = *given.find(prefix + name);
            if (t.type != type)
                return failure(errc::dtype, prefix + name, "is ", name_of(t.type), "; where it learns it is ",
                               name_of(type));
            made.tensors_.push_back({prefix + name, t, std::vector<Number>(t.shape.elements())});
        }
        made.width_ = made.tensors_[1].values.size();
        made.taps_ = made.tensors_[0].values.size() / made.width_;
        made.dilation_ = dilation;
        made.norm_.eps = eps;
        return {std::move(made)};
    }

    [[nodiscard]] std::size_t width() const noexcept { return width_; }

    // Token t is the next of sequence sequence_of[t].
    status forward(const matrix_view<const Number>& v, std::span<const std::uint32_t> sequence_of,
                   const matrix_view<Number>& y, executor_ref execute = serially) {
        if (v.cols != width_ || y.cols != width_ || y.rows != v.rows || sequence_of.size() != v.rows)
            return failure(errc::size, "v", "is (", v.rows, ", ", v.cols, "), y (", y.rows, ", ", y.cols,
                           "), of ", sequence_of.size(), " tokens; they are (T, ", width_,
                           "), the same, and T");
        tokens_ = v.rows;
        find_past(sequence_of);
        for (std::vector<Number>* const rows : {&normed_, &sums_, &given_}) grow(*rows, tokens_ * width_);
        grow(scales_, tokens_);
        const Number* const weight = at(1);
        if (status s = in_parts(execute, tokens_, [&](std::size_t t) { normalise(v, t); }); !s) return s;
        return in_parts(execute, tokens_, [&](std::size_t t) {
            Number* const sum = sums_.data() + t * width_;
            std::fill_n(sum, width_, Number(0));
            for_past(t, [&](std::size_t tap, std::size_t before) {
                const Number* const row = normed_.data() + before * width_;
                for (std::size_t j = 0; j < width_; ++j)
                    sum[j] += at(0)[j * taps_ + tap] * row[j] * weight[j];
            });
            for (std::size_t j = 0; j < width_; ++j) y.row(t)[j] = v.row(t)[j] + silu{}(sum[j]);
        });
    }

    // Gradients of sum(y dy), for the y of the last forward: of v written, of the tensors accumulated.
    status backward(const matrix_view<const Number>& dy, const matrix_view<Number>& dv,
                    executor_ref execute = serially) {
        if (dy.rows != tokens_ || dy.cols != width_ || dv.rows != tokens_ || dv.cols != width_)
            return failure(errc::size, "dy", "is (", dy.rows, ", ", dy.cols, "), dv (", dv.rows, ", ",
                           dv.cols, "); the last forward had ", tokens_, " tokens of ", width_);
        // Of the sums, in their place.
        const auto of_sums = [&](std::size_t t) {
            for (std::size_t j = 0; j < width_; ++j) {
                Number& s = sums_[t * width_ + j];
                const Number open = sigmoid{}(s);
                s = dy.row(t)[j] * open * (Number(1) + s * (Number(1) - open));
            }
        };
        if (status s = in_parts(execute, tokens_, of_sums); !s) return s;
        // Of normalised rows: a feature reads only itself, in other rows.
        const auto of_feature = [&](std::size_t j) {
            for (std::size_t t = 0; t < tokens_; ++t) given_[t * width_ + j] = Number(0);
            Number* const taps = tensors_[0].values.data() + j * taps_;
            for (std::size_t t = 0; t < tokens_; ++t)
                for_past(t, [&](std::size_t tap, std::size_t before) {
                    const Number s = sums_[t * width_ + j];
                    taps[tap] += s * normed_[before * width_ + j] * at(1)[j];
                    given_[before * width_ + j] += s * at(0)[j * taps_ + tap];
                });
            for (std::size_t t = 0; t < tokens_; ++t) {
                tensors_[1].values[j] += given_[t * width_ + j] * normed_[t * width_ + j];
                given_[t * width_ + j] *= at(1)[j];
            }
        };
        if (status s = in_parts(execute, width_, of_feature); !s) return s;
        const std::size_t tokens = std::exchange(tokens_, 0);  // what forward kept is used up
        return in_parts(execute, tokens, [&](std::size_t t) {
            const Number *const d = given_.data() + t * width_, *const row = normed_.data() + t * width_;
            double dot = 0;
            for (std::size_t j = 0; j < width_; ++j)
                dot += static_cast<double>(d[j]) * static_cast<double>(row[j]);
            const auto mean = static_cast<Number>(dot / static_cast<double>(width_));
            for (std::size_t j = 0; j < width_; ++j)
                dv.row(t)[j] = dy.row(t)[j] + scales_[t] * (d[j] - row[j] * mean);
        });
    }

    [[nodiscard]] std::vector<tensor_gradient<Number>> gradients() {
        std::vector<tensor_gradient<Number>> all;
        for (tensor& t : tensors_)
            all.push_back({t.name, tensor_kind::vector, t.given.shape, t.values.data(), nullptr});
        return all;
    }
    void clear_gradients() noexcept {
        for (tensor& t : tensors_) std::fill(t.values.begin(), t.values.end(), Number(0));
    }

private:
    struct tensor {
        std::string name;
        tensor_view given;
        std::vector<Number> values;  // its gradient
    };
    static constexpr std::size_t none = ~std::size_t{0};

    [[nodiscard]] const Number* at(std::size_t i) const noexcept {
        return static_cast<const Number*>(tensors_[i].given.data);
    }
    static void grow(std::vector<Number>& to, std::size_t numbers) {
        if (to.size() < numbers) to.resize(numbers);
    }
    // The tokens that each reads, one per tap: those `dilation` apart in its sequence.
    void find_past(std::span<const std::uint32_t> sequence_of) {
        std::map<std::uint32_t, std::vector<std::size_t>> tokens_of;
        past_.assign(tokens_ * taps_, none);
        for (std::size_t t = 0; t < tokens_; ++t) {
            std::vector<std::size_t>& own = tokens_of[sequence_of[t]];
            own.push_back(t);
            for (std::size_t tap = taps_, back = 0; tap-- > 0 && back < own.size(); back += dilation_)
                past_[t * taps_ + tap] = own[own.size() - 1 - back];
        }
    }
    template <class Use>
    void for_past(std::size_t t, const Use& use) const {
        for (std::size_t tap = 0; tap < taps_; ++tap)
            if (const std::size_t before = past_[t * taps_ + tap]; before != none) use(tap, before);
    }
    void normalise(const matrix_view<const Number>& v, std::size_t t) {
        double squares = 0;
        for (std::size_t j = 0; j < width_; ++j)
            squares += static_cast<double>(v.row(t)[j]) * static_cast<double>(v.row(t)[j]);
        scales_[t] = static_cast<Number>(norm_.scale(squares, static_cast<double>(width_)));
        for (std::size_t j = 0; j < width_; ++j) normed_[t * width_ + j] = v.row(t)[j] * scales_[t];
    }
    // Calls use(i) for each i below n, in as many tasks as run at a time.
    template <class Use>
    static status in_parts(executor_ref execute, std::size_t n, const Use& use) {
        const std::size_t tasks = std::max<std::size_t>(1, std::min(execute.concurrency(), n));
        const auto task = [&](std::size_t i) noexcept {
            for (std::size_t k = i * n / tasks; k < (i + 1) * n / tasks; ++k) use(k);
        };
        return detail::run_each_once(execute, tasks, task_ref(task));
    }

    std::size_t width_ = 0, taps_ = 0, dilation_ = 0, tokens_ = 0;
    rms norm_;
    std::vector<tensor> tensors_;  // the taps, the norm's weight
    std::vector<std::size_t> past_;
    // Kept by forward: normalised rows without their weight, the sums behind the taps, scales of rows; and room for the
    // gradients of the first.
    std::vector<Number> normed_, sums_, scales_, given_;
};

TIFFIN_END
