// How a layer is prepared to learn, and what a step of it brings.
#pragma once

#include <tiffin/call/carried_residuals.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/named_memory.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/view.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

TIFFIN_BEGIN

// What backward reads of forward: left in memory by it, or computed again. Recomputing costs a forward pass more, and
// no memory but a workspace, which layers can share.
enum class activations { kept, recomputed };

template <class Number>
struct training_options {
    std::size_t tokens = 512;  // the most of a call
    std::size_t table_rows =
        0;  // the most ids whose rows a table's gradient holds until it is cleared; 0: `tokens`
    activations keeps = activations::kept;
    std::size_t workers = 0;  // tasks at a time; 0: as many as the machine runs
    // Whether a tensor is trained. A frozen one costs no gradient, nor its products. Empty: all are.
    std::function<bool(std::string_view name)> trains{};
    // Where gradients of dense tensors are added up; those not named here, in memory of the layer's own.
    named_memory<Number> into{};
    // Whether calls bring their workspace, which layers can share; else the layer has one.
    bool shares_workspace = false;
};

// What forward reads beside x. All but the ids is read again by backward.
template <class Number>
struct training_inputs {
    std::span<const std::int32_t> token_ids{};    // (T), or empty where the block reads none
    matrix_view<const Number> residual{};         // (T, d_model)
    matrix_view<const Number> per_layer_input{};  // (T, width)
    std::span<choice<float>> routes{};            // (T, choices()): written, see token_inputs
    matrix_view<Number> logits{};                 // (T, experts()): written; of the same router
    carried_rows<Number>* carried = nullptr;      // of this forward pass
    std::span<const gathered_rows> gathered{};    // see token_inputs
};

// What backward writes beside the gradients of tensors, where it is asked for, and what it reads beside dy.
template <class Number>
struct input_gradients {
    matrix_view<Number> x{};                // (T, d_model)
    matrix_view<Number> residual{};         // (T, d_model)
    matrix_view<Number> per_layer_input{};  // (T, width)
    matrix_view<const Number> logits{};  // (T, experts()): read; of a loss on the router, see router_loss.hpp
    carried_rows<Number>* carried = nullptr;  // of this backward pass
};

TIFFIN_END
