// The part of a layer that does not depend on its block or backend, compiled once.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/bind/bound.hpp>
#include <tiffin/call/any_engine.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/view.hpp>

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Memory for the intermediate values of a call. One call uses it at a time; layers may share it.
class workspace {
public:
    workspace() = default;
    explicit workspace(std::size_t bytes) : buffer_(bytes) {}
    // Of size 0 if the allocation fails.
    workspace(std::size_t bytes, const std::nothrow_t& none) noexcept : buffer_(bytes, none) {}
    [[nodiscard]] std::size_t size() const noexcept { return buffer_.size(); }
    operator std::span<std::byte>() noexcept { return {buffer_.data(), buffer_.size()}; }

private:
    aligned_buffer buffer_;
};

namespace detail {

// The part of a layer that does not depend on its block or backend.
class layer_of_any_block {
public:
    layer_of_any_block(call_needs needs, std::size_t workers,
                       std::unique_ptr<const any_engine<call_arguments>> engine)
        : needs_(std::move(needs)), workers_(workers), engine_(std::move(engine)) {}

    // Sets the layer's own workspace: for `tokens` tokens in one piece; none for 0.
    // Errors: errc::workspace if the allocation fails.
    status reserve(std::size_t tokens) {
        const std::size_t bytes = tokens ? workspace_bytes(tokens, workers_) : 0;
        workspace_ = workspace(bytes, std::nothrow);
        if (workspace_.size() == bytes) return {};
        return failure(errc::workspace, "tokens", "are ", tokens, "; there is no memory for the ", bytes,
                       " bytes that they need at a time");
    }

    [[nodiscard]] std::size_t d_model() const noexcept { return needs_.d_model; }
    // The width of y: d_model, but for a block with a width of its own (linear).
    [[nodiscard]] std::size_t outputs() const noexcept { return needs_.outputs; }
    // Hidden features of the first ffn; d_model if there is none.
    [[nodiscard]] std::size_t d_ff() const noexcept { return needs_.d_ff; }
    // Experts per token of the outermost part that routes; 0 if none routes.
    [[nodiscard]] std::size_t choices() const noexcept { return needs_.choices; }
    // What calls must provide.
    [[nodiscard]] const call_needs& needs() const noexcept { return needs_; }
    // Names of the tensors that the layer keeps reading in the caller's memory; all others may be freed.
    [[nodiscard]] const std::vector<std::string>& reads_in_place() const noexcept { return needs_.in_place; }
    // Bytes of weights in the layer's own memory: packed, converted, or copied. If the tensors they were made from stay
    // in memory, these weights are there twice.
    [[nodiscard]] std::size_t held_bytes() const noexcept { return needs_.held_bytes; }

    // Workspace bytes for a call of `tokens` tokens in one piece with `workers` concurrent tasks, in place or not.
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return engine_ ? copies(tokens).used() + engine_->workspace_bytes(tokens, workers) +
                             aligned_buffer::line - 1
                       : 0;
    }
    [[nodiscard]] workspace make_workspace(std::size_t tokens, std::size_t workers) const {
        return workspace(workspace_bytes(tokens, workers));
    }

    template <class X, class Y>
    status try_call(const X& x, const token_inputs& inputs, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serially) const {
        auto in = as_rows<const float>(x, d_model(), "x");
        if (!in) return in.failure();
        auto out = as_rows<float>(y, outputs(), "y", outputs() == d_model() ? "d_model" : "outputs");
        if (!out) return out.failure();
        return run(*in, inputs, *out, memory, execute);
    }
    template <class X, class Y>
    status try_call(const X& x, const token_inputs& inputs, Y&& y, executor_ref execute = serially) {
        return std::as_const(*this).try_call(x, inputs, y, std::span<std::byte>(workspace_), execute);
    }
    template <class X, id_range Ids, class Y>
    status try_call(const X& x, const Ids& ids, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serially) const {
        return try_call(x, token_inputs{.token_ids = ids}, y, memory, execute);
    }
    template <class X, id_range Ids, class Y>
    status try_call(const X& x, const Ids& ids, Y&& y, executor_ref execute = serially) {
        return try_call(x, token_inputs{.token_ids = ids}, y, execute);
    }
#if TIFFIN_EXCEPTIONS
    template <class X, class Y>
    void operator()(const X& x, const token_inputs& inputs, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serially) const {
        try_call(x, inputs, y, memory, execute).or_throw();
    }
    template <class X, class Y>
    void operator()(const X& x, const token_inputs& inputs, Y&& y, executor_ref execute = serially) {
        try_call(x, inputs, y, execute).or_throw();
    }
    template <class X, id_range Ids, class Y>
    void operator()(const X& x, const Ids& ids, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serially) const {
        try_call(x, token_inputs{.token_ids = ids}, y, memory, execute).or_throw();
    }
    template <class X, id_range Ids, class Y>
    void operator()(const X& x, const Ids& ids, Y&& y, executor_ref execute = serially) {
        try_call(x, token_inputs{.token_ids = ids}, y, execute).or_throw();
    }
#endif

private:
    // Room for copies of x, and of the residual if it is read, where y overwrites them.
    [[nodiscard]] arena<aligned_buffer::line> copies(std::size_t tokens) const noexcept {
        arena<aligned_buffer::line> areas;
        areas.take<float>(tokens * needs_.d_model);
        if (needs_.residual) areas.take<float>(tokens * needs_.d_model);
        return areas;
    }
    status run(matrix_view<const float> x, const token_inputs& inputs, matrix_view<float> y,
               std::span<std::byte> memory, executor_ref execute) const;

    call_needs needs_;
    std::size_t workers_;
    std::unique_ptr<const any_engine<call_arguments>> engine_;
    workspace workspace_;
};

}  // namespace detail

TIFFIN_END
