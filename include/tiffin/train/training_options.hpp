// The options of prepare_training(), and the arguments of forward and backward.
#pragma once

#include <tiffin/call/carried_residuals.hpp>
#include <tiffin/call/chosen_experts.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/error.hpp>
#include <tiffin/named_memory.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/view.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

TIFFIN_BEGIN

// Where backward gets the activations of forward from: kept in memory, or recomputed. Recomputing costs one more
// forward pass, and no memory but a workspace, which layers can share.
enum class activations { kept, recomputed };

template <class Number>
struct training_options {
    std::size_t tokens = 512;  // the most per call
    // The most distinct ids in a table's gradient until it is cleared; 0: `tokens`.
    std::size_t table_rows = 0;
    activations keeps = activations::kept;
    std::size_t workers = 0;  // concurrent tasks; 0: one per hardware thread
    // Whether a tensor is trained. A frozen one has no gradient, and its products are skipped. Empty: all are trained.
    std::function<bool(std::string_view name)> trains{};
    // Memory for the gradients of dense tensors; the layer allocates it for those not named here.
    named_memory<Number> into{};
    // Whether the caller passes a workspace with each call, which layers can share; else the layer has its own.
    bool shares_workspace = false;
};

// The arguments of forward beside x. Backward reads the inputs again, except the ids.
template <class Number>
struct training_inputs {
    std::span<const std::int32_t> token_ids{};    // (T), or empty where the block reads none
    matrix_view<const Number> residual{};         // (T, d_model)
    matrix_view<const Number> per_layer_input{};  // (T, width)
    std::span<choice<float>> routes{};            // (T, choices()): written, see token_inputs
    matrix_view<Number> logits{};                 // (T, experts()): written; of the same router as `routes`
    carried_rows<Number>* carried = nullptr;      // of this forward pass
    std::span<const gathered_rows> gathered{};    // see token_inputs
    // Called in forward once the experts of a gathered pool are chosen, before their rows are read from `gathered`: see
    // chosen_pool_rows. Of a pool in a mixture, once per expert that has tokens. Null: all rows are there. Its failure is
    // that of the call; y is then invalid.
    const std::function<status(const chosen_experts<Number>&)>* on_chosen = nullptr;
};

// What backward writes beside the tensors' gradients (empty: not computed), and what it reads beside dy.
template <class Number>
struct input_gradients {
    matrix_view<Number> x{};                  // (T, d_model)
    matrix_view<Number> residual{};           // (T, d_model)
    matrix_view<Number> per_layer_input{};    // (T, width)
    matrix_view<const Number> logits{};       // (T, experts()): read; of a router loss, see router_loss.hpp
    carried_rows<Number>* carried = nullptr;  // of this backward pass
};

TIFFIN_END
