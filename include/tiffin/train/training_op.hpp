// The operations of a plan node in training, forward and backward, as function pointers.
#pragma once

#include <tiffin/plan/op.hpp>
#include <tiffin/train/route_partials.hpp>

#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

namespace train_detail {

// The arguments of one formula for one token. An operand is a row of `features` values, or one value per token.
template <class Number>
struct training_op_call {
    const void* policy;
    const Number* const* in;  // null: zeros
    std::size_t features;
    Number* out;           // forward
    const Number* d_out;   // backward
    Number* const* d_in;   // null: not needed
    const bool* is_added;  // per operand: d_in +=, else d_in =; of one value per token always +=
};

template <class Number, class Wide>
struct training_ops : node_ops<Number, Wide> {
    using dual = route_partials<Wide>;

    void (*value)(const training_op_call<Number>&) noexcept = nullptr;
    void (*back)(const training_op_call<Number>&) noexcept = nullptr;
    // The derivative of `scale` with respect to the sum.
    Number (*slope)(const void* source, const Number& sum, const Number& width) = nullptr;
    // d_logits[e] = sum_i d_weights[i] dw_i / dlogit_e. room: experts + 2 choices.
    void (*choose_back)(const void* source, const Number* logits, std::size_t experts,
                        const choice<Number>* chosen, std::size_t choices, const Number* d_weights,
                        dual* room, Number* d_logits) = nullptr;
    // Backward of a head's weights, (choices): to the scores that they were computed from. room: choices.
    void (*choose_rows_back)(const void* source, const Number* sums, std::size_t choices,
                             const Number* d_weights, dual* room, Number* d_sums) = nullptr;
    // Backward of gated weights: to the key products and, unless d_before is null, to the weights before. room: 2 n.
    void (*gate_rows_back)(const void* source, const Number* products, const Number* weights, std::size_t n,
                           const Number* d_weights, dual* room, Number* d_products,
                           Number* d_before) = nullptr;

    static constexpr auto of_router() noexcept {
        return std::tuple_cat(node_ops<Number, Wide>::of_router(),
                              std::tuple(&training_ops::choose_back, &training_ops::choose_rows_back));
    }
    static constexpr auto of_row_gate() noexcept {
        return std::tuple_cat(node_ops<Number, Wide>::of_row_gate(),
                              std::tuple(&training_ops::gate_rows_back));
    }
};

}  // namespace train_detail

TIFFIN_END
