// Table rows read before a formula, and gradients of tensors after it.
#pragma once

#include <tiffin/train/trained_rows.hpp>

#include <algorithm>
#include <cstddef>

TIFFIN_BEGIN

namespace train_detail {

// The table row of token t's id: of a table, or of expert e of a pool.
template <class Number>
const Number* row_of(const training_call<Number>& call, const parameter<Number>& table, std::size_t e,
                     std::size_t t) noexcept {
    if (table.given.gathered != 0)
        return reinterpret_cast<const Number*>(call.gathered[table.given.gathered - 1].row(call.number(t))) +
               e * table.width();
    return table.row(e, call.ids[t]);
}

// The operand of token t where a formula reads it from a tensor or an input of the call; null: zeros.
template <class Number>
const Number* given_row(tensor_kind kind, const training_call<Number>& call, const parameter<Number>& tensor,
                        const Number* x, std::size_t t, std::size_t width) noexcept {
    switch (kind) {
        case tensor_kind::table: return row_of(call, tensor, 0, t);
        case tensor_kind::scalar:
        case tensor_kind::vector: return tensor.is_given() ? tensor.values() : nullptr;
        case tensor_kind::given: return call.per_layer_input + t * width;
        case tensor_kind::residual_row: return call.residual + t * width;
        case tensor_kind::input_row: return x + t * width;
        default: return nullptr;
    }
}

// The row of expert e for token t: row e of chosen_rows, or the row of the token's id in expert e of a pool.
template <class Number>
const Number* chosen_row(const training_call<Number>& call, const parameter<Number>& rows, std::size_t e,
                         std::size_t t) noexcept {
    if (rows.kind == tensor_kind::chosen_rows) return rows.values() + e * rows.width();
    return row_of(call, rows, e, t);
}
template <class Number>
Number* chosen_gradient(const training_call<Number>& call, const parameter<Number>& rows, std::size_t e,
                        std::size_t t) noexcept {
    if (rows.kind == tensor_kind::chosen_rows) return rows.gradient + e * rows.width();
    return rows.row_gradient(e, call.token_slots[t]);
}

// to[t] = sum over the choices (e, w) of w E_e[id of t], best first, or of w V[e]. A negative choice ends the list.
template <class M, class Number>
void mix_rows(const training_call<Number>& call, const parameter<Number>& pool, const choice<Number>* chosen,
              std::size_t choices, Number* to) {
    const std::size_t width = pool.width();
    call.each_tokens(call.tokens, [&](std::size_t, std::size_t first, std::size_t last) {
        for (std::size_t t = first; t < last; ++t)
            for (std::size_t j = 0; j < width; j += M::width) {
                const std::size_t n = std::min(M::width, width - j);
                auto total = M::all(Number(0));
                for (std::size_t i = 0; i < choices; ++i) {
                    const choice<Number>& one = chosen[t * choices + i];
                    if (one.expert < 0) break;
                    const Number* const row = chosen_row(call, pool, static_cast<std::size_t>(one.expert), t);
                    total = total + M::all(one.weight) * M::load(row + j, n);
                }
                M::store(total, to + t * width + j, n);
            }
    });
}
// Backward: d_weights += d . E, and w d to the gradients of the rows read.
template <class M, class Number>
void mix_rows_backward(const training_call<Number>& call, const parameter<Number>& pool,
                       const choice<Number>* chosen, std::size_t choices, const Number* d,
                       Number* d_weights) {
    const std::size_t width = pool.width();
    call.each_tokens(call.tokens, [&](std::size_t, std::size_t first, std::size_t last) {
        for (std::size_t t = first; t < last; ++t)
            for (std::size_t i = 0; i < choices && chosen[t * choices + i].expert >= 0; ++i) {
                const auto e = static_cast<std::size_t>(chosen[t * choices + i].expert);
                Number& to = d_weights[t * choices + i];
                to = to + dot<M>(d + t * width, chosen_row(call, pool, e, t), width);
            }
    });
    if (pool.gradient == nullptr) return;
    call.each_columns(width, [&](std::size_t first, std::size_t last) {
        for (std::size_t t = 0; t < call.tokens; ++t)
            for (std::size_t i = 0; i < choices; ++i) {
                const choice<Number>& one = chosen[t * choices + i];
                if (one.expert < 0) break;
                Number* const to = chosen_gradient(call, pool, static_cast<std::size_t>(one.expert), t);
                for (std::size_t j = first; j < last; ++j) to[j] = to[j] + one.weight * d[t * width + j];
            }
    });
    if (!has_rows_of_ids(pool.kind)) return;
    for (std::size_t t = 0; t < call.tokens; ++t)
        for (std::size_t i = 0; i < choices; ++i)
            pool.read[static_cast<std::size_t>(chosen[t * choices + i].expert) * pool.slot_count +
                      call.token_slots[t]] = 1;
}

// The gradient of a table: the row of the id of t += dz[t], tokens ascending.
template <class Number>
void add_to_ids(const training_call<Number>& call, const parameter<Number>& table, const Number* dz) {
    if (table.gradient == nullptr) return;
    const std::size_t width = table.width();
    call.each_columns(width, [&](std::size_t first, std::size_t last) {
        for (std::size_t t = 0; t < call.tokens; ++t) {
            Number* const to = table.row_gradient(0, call.token_slots[t]);
            for (std::size_t j = first; j < last; ++j) to[j] = to[j] + dz[t * width + j];
        }
    });
    for (std::size_t t = 0; t < call.tokens; ++t) table.read[call.token_slots[t]] = 1;
}

// The gradient of a vector or a scalar += the partial sums of the chunks of tokens, in order.
template <class Number>
void add_sums(const training_call<Number>& call, const parameter<Number>& p, std::size_t width,
              std::size_t chunks, const Number* sums) {
    if (p.gradient == nullptr) return;
    call.each_columns(width, [&](std::size_t first, std::size_t last) {
        for (std::size_t c = 0; c < chunks; ++c)
            for (std::size_t j = first; j < last; ++j) p.gradient[j] = p.gradient[j] + sums[c * width + j];
    });
}

// Gradients of a projection z = x W^T: dx += dz W, dW += dz^T x.
template <class Number>
void multiply_back(const product_functions<Number>& products, const training_call<Number>& call,
                   const parameter<Number>& weight, factor<Number> x, factor<Number> dz, Number* dx,
                   const step_memory& scratch) {
    if (dx != nullptr)
        products.multiply(call, call.tokens, x.stride, dz.stride, dz, {weight.values(), x.stride, true}, dx,
                          true, scratch.rest());
    if (weight.gradient == nullptr) return;
    x.transposed = dz.transposed = true;
    products.multiply(call, dz.stride, x.stride, call.tokens, dz, x, weight.gradient, true, scratch.rest());
}

}  // namespace train_detail

TIFFIN_END
