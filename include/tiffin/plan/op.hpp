// What a policy's formula is called with, and what a node of a plan does, behind functions.
#pragma once

#include <tiffin/router/selection.hpp>

#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

// Values of an op's operand, for a block of tokens and features. Adjacent features lie side by side in panels, as sums
// of products come. Number: what values lie in memory as, float on a machine.
template <class Number>
struct operand {
    const Number* data;         // token 0
    const Number* const* rows;  // in place of data: each token's; or null
    std::size_t token_step;     // from one token's to the next one's; 0: all have the same
    std::size_t panel_step;     // from one panel's to the next one's; 0: one number per token

    [[nodiscard]] const Number* of(std::size_t token) const noexcept {
        return rows != nullptr ? rows[token] : data + token * token_step;
    }
};

// One call of an op. Whole registers are read and written: behind the last feature there is room.
template <class Number>
struct op_call {
    const void* policy;
    const operand<Number>* in;
    std::size_t tokens, features;
    std::size_t panel;  // features of one
    Number* out;        // panels side by side
    std::size_t out_step;
};
template <class Number>
using op_function = void (*)(const op_call<Number>&) noexcept;

// What a node of a plan does beside its formula, where its role alone does not say it.
// Wide: what a router chooses in, double on a machine.
template <class Number, class Wide>
struct node_ops {
    const void* (*policy)(const void* source) = nullptr;  // what the formula is called with
    bool reads_tensors = true;                            // else the parts' values alone
    const void* role = nullptr;  // what the engine does for its role, if it has something of its own
    // A norm, or the gate of a dot: from the sum over a row and the row's length to the number that scales it.
    Number (*scale)(const void* source, const Number& sum, const Number& width) = nullptr;
    void (*choose)(const void* source, const Number* logits, std::size_t experts, const Number* bias,
                   Wide* scratch, choice<Number>* chosen) = nullptr;
    void (*choose_rows)(const void* source, const Number* scores, std::size_t heads, std::size_t keys,
                        Wide* scratch, choice<Number>* chosen) = nullptr;
    // scratch: 2 n; in training, of numbers with derivatives (see training_numbers.hpp).
    void (*gate_rows)(const void* source, const Number* products, std::size_t n, Wide* scratch,
                      choice<Number>* chosen) = nullptr;

    // What a router does, and the gate of its rows: in a text they are policies of their own.
    static constexpr auto of_router() noexcept {
        return std::tuple(&node_ops::choose, &node_ops::choose_rows);
    }
    static constexpr auto of_row_gate() noexcept { return std::tuple(&node_ops::gate_rows); }
};

// The same with its formula, over its tensors, if it reads any, and its parts' values.
template <class Number, class Wide>
struct formula_ops : node_ops<Number, Wide> {
    op_function<Number> formula = nullptr;
};

TIFFIN_END
