// What a node of a plan does in training, behind functions.
#pragma once

#include <tiffin/plan/op.hpp>
#include <tiffin/train/route_partials.hpp>

#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

namespace train_detail {

// One call of a formula, for one token. Of each operand the features, or one number where it is one per token.
template <class Number>
struct training_op_call {
    const void* policy;
    const Number* const* in;  // null: zeros
    std::size_t features;
    Number* out;          // forward
    const Number* d_out;  // backward
    Number* const* d_in;  // null: not wanted
    const bool*
        is_added;  // whether the gradient of an operand is added to what lies there; numbers always are
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
    // From the weights that a head gives its choices to what they were chosen by, (choices). room: choices.
    void (*choose_rows_back)(const void* source, const Number* sums, std::size_t choices,
                             const Number* d_weights, dual* room, Number* d_sums) = nullptr;
    // From gated weights to the products and, where it is not null, to the weights before. room: 2 n.
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
