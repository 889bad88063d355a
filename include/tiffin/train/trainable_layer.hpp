// A trainable layer: forward, and the gradients of its tensors and inputs.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/call/call_checks.hpp>
#include <tiffin/call/layer_of_any_block.hpp>
#include <tiffin/train/parameter.hpp>
#include <tiffin/train/trained_rows.hpp>
#include <tiffin/train/training_options.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The gradient of one tensor. Dense: `data`, in the shape of the tensor. Table or pool: a row per id, see ids().
template <class Number>
struct tensor_gradient {
    std::string_view name;
    tensor_kind kind;
    tiffin::shape shape;  // of the tensor
    Number* data;         // null for a table or a pool
    const train_detail::parameter<Number>* rows;

    // The gradient row of expert e (0 for a table) in slot `slot`, and whether a token has read that table row.
    [[nodiscard]] std::span<Number> row(std::size_t e, std::size_t slot) const noexcept {
        return {rows->row_gradient(e, slot), rows->width()};
    }
    [[nodiscard]] bool is_read(std::size_t e, std::size_t slot) const noexcept {
        return rows->read[e * rows->slot_count + slot] != 0;
    }
};

// A block with trained weights: y = block(x, inputs), and its gradients.
//
//     auto layer = tiffin::prepare_training<tiffin::stem>(weights, tiffin::simd{}, {.tokens = 512});
//     layer.forward(x, {.token_ids = ids}, y);
//     layer.backward(dy, {.x = dx});                  // gradients accumulate until clear_gradients()
//
// Shapes: x, dx (T, d_model), y, dy (T, outputs), rows adjacent. T up to options.tokens.
// Lifetime: every call reads the tensors from the memory they were given in: an optimizer writes to it between steps. x
//   and the inputs must stay unchanged from forward to backward.
// Numerics: gradients of the formula; a router's selection has none. Bit-identical for any number of threads.
// Errors: errc::size, token_id, overlap, workspace, empty; found before anything is written. errc::executor where an
//   executor did not run each task once: y and the gradients are then invalid, and backward needs a new forward.
// Threads: one call at a time. Cost: no allocation in a call. Source: docs/training.md.
template <class Number>
class trainable_layer {
    using parameters = train_detail::owned_parameters<Number>;
    using rows_type = train_detail::trained_rows<Number>;

public:
    // For try_prepare_training().
    trainable_layer(call_needs needs, std::shared_ptr<const void> block, std::unique_ptr<parameters> all,
                    std::unique_ptr<const rows_type> rows, const training_options<Number>& options,
                    std::size_t experts, std::size_t workers)
        : needs_(std::move(needs)),
          block_(std::move(block)),
          parameters_(std::move(all)),
          rows_(std::move(rows)),
          keeps_(options.keeps),
          tokens_(options.tokens),
          workers_(workers),
          experts_(experts) {
        for (const auto& p : *parameters_)
            if (p.gradient != nullptr && train_detail::has_rows_of_ids(p.kind)) trains_rows_ = true;
    }
    // Allocates the memory of calls, without that of the gradients.
    // Errors: errc::workspace where it cannot be allocated.
    status reserve(const training_options<Number>& options) {
        const std::size_t kept = keeps_ == activations::kept ? kept_bytes(tokens_) : 0;
        const std::size_t taken = taken_numbers() * sizeof(Number);
        const std::size_t used = options.shares_workspace ? 0 : workspace_bytes();
        kept_ = aligned_buffer(kept, std::nothrow);
        taken_ = aligned_buffer(taken, std::nothrow);
        workspace_ = workspace(used, std::nothrow);
        if (kept_.size() != kept || taken_.size() != taken || workspace_.size() != used)
            return failure(errc::workspace, "tokens", "are ", tokens_, "; there is no memory for the ",
                           kept + taken + used, " bytes that they need");
        touched_ = {options.table_rows != 0 ? options.table_rows : tokens_, tokens_};
        ids_.resize(tokens_);
        slots_.resize(tokens_);
        return {};
    }

    [[nodiscard]] std::size_t d_model() const noexcept { return needs_.d_model; }
    [[nodiscard]] std::size_t outputs() const noexcept { return needs_.outputs; }
    [[nodiscard]] std::size_t choices() const noexcept { return needs_.choices; }
    // Of the router whose routes are recorded; 0 without a router.
    [[nodiscard]] std::size_t experts() const noexcept { return experts_; }
    [[nodiscard]] const call_needs& needs() const noexcept { return needs_; }
    // Bytes that forward keeps for backward; of a mixture for its worst-case routes.
    [[nodiscard]] std::size_t kept_bytes(std::size_t tokens) const {
        train_detail::step_memory kept;
        rows_->keep(kept, tokens);
        return kept.used();
    }
    // Bytes of scratch memory of a call.
    [[nodiscard]] std::size_t workspace_bytes() const {
        std::size_t bytes = rows_->scratch_bytes(tokens_, workers_) + aligned_buffer::line - 1;
        if (keeps_ == activations::recomputed)
            bytes += kept_bytes(tokens_) + (tokens_ * outputs() + taken_numbers()) * sizeof(Number) +
                     2 * aligned_buffer::line;
        return bytes;
    }

    // y <- block(x, inputs).
    template <class X, class Y>
    status try_forward(const X& x, const training_inputs<Number>& inputs, Y&& y, std::span<std::byte> memory,
                       executor_ref execute = serially);
    template <class X, class Y>
    status try_forward(const X& x, const training_inputs<Number>& inputs, Y&& y,
                       executor_ref execute = serially) {
        return try_forward(x, inputs, y, std::span<std::byte>(workspace_), execute);
    }
    // Gradients of sum(y dy), for the y of the last forward: of inputs written to `to`, of tensors accumulated.
    template <class Y>
    status try_backward(const Y& dy, const input_gradients<Number>& to, std::span<std::byte> memory,
                        executor_ref execute = serially);
    template <class Y>
    status try_backward(const Y& dy, const input_gradients<Number>& to = {},
                        executor_ref execute = serially) {
        return try_backward(dy, to, std::span<std::byte>(workspace_), execute);
    }
#if TIFFIN_EXCEPTIONS
    template <class X, class Y>
    void forward(const X& x, const training_inputs<Number>& inputs, Y&& y, executor_ref execute = serially) {
        try_forward(x, inputs, y, execute).or_throw();
    }
    template <class Y>
    void backward(const Y& dy, const input_gradients<Number>& to = {}, executor_ref execute = serially) {
        try_backward(dy, to, execute).or_throw();
    }
#endif

    // The gradients of the trained tensors, in the order in which the tensors were given.
    [[nodiscard]] std::vector<tensor_gradient<Number>> gradients() const {
        std::vector<tensor_gradient<Number>> all;
        for (const auto& p : *parameters_)
            if (p.gradient != nullptr) {
                const bool rows = train_detail::has_rows_of_ids(p.kind);
                all.push_back(
                    {p.name, p.kind, p.given.shape, rows ? nullptr : p.gradient, rows ? &p : nullptr});
            }
        return all;
    }
    // The ids that have rows in the tables' gradients, ascending, with their slots; empty where no table is trained.
    [[nodiscard]] const train_detail::touched_ids& ids() const noexcept {
        return touched_;
    }
    // Sets all gradients to 0 and removes the ids: backward() fails until the next forward().
    void clear_gradients() noexcept {
        for (auto& p : *parameters_) {
            if (p.gradient == nullptr || !is_backward_done_) continue;
            if (!train_detail::has_rows_of_ids(p.kind)) {
                std::fill_n(p.gradient, p.gradient_numbers(), Number(0));
                continue;
            }
            for (std::size_t e = 0; e < p.experts(); ++e) {
                std::fill_n(p.row_gradient(e, 0), touched_.size() * p.width(), Number(0));
                std::fill_n(p.read.data() + e * p.slot_count, touched_.size(), std::uint8_t{0});
            }
        }
        touched_.clear();
        is_forward_done_ = is_backward_done_ = false;
    }

private:
    using call_type = train_detail::training_call<Number>;

    status check_forward(const matrix_view<const Number>& x, const training_inputs<Number>& in,
                         const matrix_view<Number>& y) const;
    status check_backward(const matrix_view<const Number>& dy, const input_gradients<Number>& to) const;
    [[nodiscard]] status check_memory(std::span<std::byte> memory) const;
    [[nodiscard]] call_type call_of(executor_ref execute) const noexcept;
    [[nodiscard]] std::size_t taken_numbers() const noexcept {
        return needs_.delay != 0 && keeps_ == activations::recomputed ? tokens_ * outputs() : 0;
    }
    // The areas of a workspace, from its first cache-line boundary on.
    static train_detail::step_memory areas_in(std::span<std::byte> memory) noexcept {
        const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
        return train_detail::step_memory(memory.data() + (aligned_buffer::line - at % aligned_buffer::line) %
                                                             aligned_buffer::line);
    }

    call_needs needs_;
    std::shared_ptr<const void> block_;  // the sources that rows_ point at
    std::unique_ptr<parameters> parameters_;
    std::unique_ptr<const rows_type> rows_;
    activations keeps_;
    std::size_t tokens_;
    std::size_t workers_;
    std::size_t experts_;
    bool trains_rows_ = false;  // whether a table or a pool is trained
    train_detail::touched_ids touched_;
    std::vector<std::int32_t> ids_;
    std::vector<std::uint32_t> slots_;
    aligned_buffer kept_;
    workspace workspace_;
    // Of the last forward.
    matrix_view<const Number> x_{};
    training_inputs<Number> inputs_{};
    bool is_forward_done_ = false;
    bool is_backward_done_ = false;  // since gradients were cleared
    aligned_buffer taken_;  // the carried rows that a delayed block read, where forward is recomputed
    bool was_due_ = false;
};

TIFFIN_END

#include <tiffin/train/run_training.hpp>
