// The arguments of a policy's formula, and the operations of a plan's node, as functions.
#pragma once

#include <tiffin/router/selection.hpp>

#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

// Values of an op's operand, for a block of tokens and features. Adjacent features are grouped in panels, the layout of
// matrix products. Number: the type of values in memory, float in `simd`.
template <class Number>
struct operand {
    const Number* data;         // token 0
    const Number* const* rows;  // in place of data: a row per token; or null
    std::size_t token_step;     // from one token to the next; 0: all have the same
    std::size_t panel_step;     // from one panel to the next; 0: one value per token

    [[nodiscard]] const Number* of(std::size_t token) const noexcept {
        return rows != nullptr ? rows[token] : data + token * token_step;
    }
};

// One call of an op. Whole registers are read and written: there is padding after the last feature.
template <class Number>
struct op_call {
    const void* policy;
    const operand<Number>* in;
    std::size_t tokens, features;
    std::size_t panel;  // features per panel
    Number* out;        // panels side by side
    std::size_t out_step;
};
template <class Number>
using op_function = void (*)(const op_call<Number>&) noexcept;

// The operations of a node beside its formula, where its role alone does not determine them.
// Wide: the type that routers choose in, double in `simd`.
template <class Number, class Wide>
struct node_ops {
    const void* (*policy)(const void* source) = nullptr;  // the policy that the formula is called with
    bool reads_tensors = true;                            // else the parts' values alone
    const void* role = nullptr;  // what the engine does for its role, if anything of its own
    // Of a norm, or the gate of a dot product: from the sum over a row and its width to the value that scales the row.
    Number (*scale)(const void* source, const Number& sum, const Number& width) = nullptr;
    void (*choose)(const void* source, const Number* logits, std::size_t experts, const Number* bias,
                   Wide* scratch, choice<Number>* chosen) = nullptr;
    void (*choose_rows)(const void* source, const Number* scores, std::size_t heads, std::size_t keys,
                        Wide* scratch, choice<Number>* chosen) = nullptr;
    // scratch: 2 n; in training, of values with derivatives (see training_numbers.hpp).
    void (*gate_rows)(const void* source, const Number* products, std::size_t n, Wide* scratch,
                      choice<Number>* chosen) = nullptr;

    // The operations of a router, and of the gate of its rows, which are policies of their own in a text.
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
