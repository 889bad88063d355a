// The interface of every part of a trainable layer: the rows of a source, forward and backward.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/source_sizes.hpp>
#include <tiffin/plan/lower.hpp>
#include <tiffin/train/parameter.hpp>
#include <tiffin/train/training_call.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

TIFFIN_BEGIN

namespace train_detail {

// x (tokens, inputs), y (tokens, width); rows are contiguous. Immutable: what forward stores for backward is in `kept`.
template <class Number>
class trained_rows {
public:
    virtual ~trained_rows() = default;
    // Takes from `kept` at least the areas that forward takes for `tokens` tokens.
    virtual void keep(step_memory& kept, std::size_t tokens) const = 0;
    // Bytes of scratch memory of forward or backward.
    [[nodiscard]] virtual std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const = 0;
    // y <- source(x).
    virtual void forward(const training_call<Number>& call, const Number* x, Number* y, step_memory& kept,
                         step_memory scratch) const = 0;
    // dx += dy (dy/dx), unless dx is null; likewise for the gradients of the parameters.
    virtual void backward(const training_call<Number>& call, const Number* x, const Number* dy, Number* dx,
                          step_memory& kept, step_memory scratch) const = 0;
};

// What the parts of a layer are constructed from.
template <class Number>
struct training_preparation {
    std::deque<parameter<Number>>& parameters;  // of the tensors given, in their order
    const parameter<Number>& absent;            // used for tensors that were not given
    product_functions<Number> products;
    std::size_t residual_width = 0;  // 0: the layer reads none
    std::size_t given_width = 0;

    const parameter<Number>* of(const bound_node& bound, std::size_t tensor, tensor_kind kind) {
        if (!is_stored(kind) || bound.given[tensor] == bound_node::not_given) return &absent;
        parameter<Number>& p = parameters[bound.given[tensor]];
        p.kind = kind;
        return &p;
    }
};

// Creates the training class of a node, by its role. M: the machine, see exact_machine.hpp.
template <class M>
std::unique_ptr<const trained_rows<typename M::number>> make_trained_rows(
    const plan_node& node, const bound_node& bound, const engine_detail::source_sizes& sizes,
    training_preparation<typename M::number>& how);

// to[rows[i]] += from[i], in any order: rows are distinct.
template <class M, class Number>
void add_rows(const training_call<Number>& call, std::size_t n, std::size_t width, const Number* from,
              const std::uint32_t* rows, Number* to) {
    call.each_tokens(n, [&](std::size_t, std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i)
            for (std::size_t j = 0; j < width; j += M::width) {
                const std::size_t count = std::min(M::width, width - j);
                Number* const at = to + rows[i] * width + j;
                M::store(M::load(at, count) + M::load(from + i * width + j, count), at, count);
            }
    });
}
// The same where rows may repeat: in ascending i.
template <class M, class Number>
void add_rows_in_order(const training_call<Number>& call, std::size_t n, std::size_t width,
                       const Number* from, const std::uint32_t* rows, Number* to) {
    call.each_columns(width, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = first; j < last; j += M::width) {
                const std::size_t count = std::min(M::width, last - j);
                Number* const at = to + rows[i] * width + j;
                M::store(M::load(at, count) + M::load(from + i * width + j, count), at, count);
            }
    });
}
// to[i] = from[rows[i]] times weights[i], where there are weights.
template <class M, class Number>
void take_rows(const training_call<Number>& call, std::size_t n, std::size_t width, const Number* from,
               const std::uint32_t* rows, const Number* weights, Number* to) {
    call.each_tokens(n, [&](std::size_t, std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i)
            for (std::size_t j = 0; j < width; j += M::width) {
                const std::size_t count = std::min(M::width, width - j);
                const auto v = M::load(from + rows[i] * width + j, count);
                M::store(weights ? v * M::all(weights[i]) : v, to + i * width + j, count);
            }
    });
}
// sum_j a[j] b[j].
template <class M, class Number>
Number dot(const Number* a, const Number* b, std::size_t n) {
    auto total = M::all(Number(0));
    for (std::size_t j = 0; j < n; j += M::width) {
        const std::size_t count = std::min(M::width, n - j);
        total = total + M::load(a + j, count) * M::load(b + j, count);
    }
    return M::sum(total);
}

}  // namespace train_detail

TIFFIN_END
