// What a backend is, and the layer it prepares.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/backend/any_engine.hpp>
#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/call.hpp>
#include <tiffin/backend/call_checks.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/view.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// How a block is computed. An engine is what a backend makes of a block and its tensors: immutable,
// with all weights in the form that the machine likes.
template <class B, class Block>
concept backend_for = block_policy<Block> && std::constructible_from < typename B::template engine<Block>,
const Block&, binding > &&requires(const typename B::template engine<Block>& engine, std::size_t n,
                                   const call_arguments& call) {
    { engine.workspace_bytes(n, n) } -> std::same_as<std::size_t>;
    engine.run(call);
};

// Memory for the intermediate values of a call. One call uses it at a time; layers may share it.
class workspace {
public:
    workspace() = default;
    explicit workspace(std::size_t bytes) : buffer_(bytes) {}
    // Of size 0 where there is no such memory.
    workspace(std::size_t bytes, const std::nothrow_t& none) noexcept : buffer_(bytes, none) {}
    [[nodiscard]] std::size_t size() const noexcept { return buffer_.size(); }
    operator std::span<std::byte>() noexcept { return {buffer_.data(), buffer_.size()}; }

private:
    aligned_buffer buffer_;
};

namespace detail {

// The most of so many tokens that an engine computes in `room` bytes; 0 where not even one fits.
template <class Engine>
std::size_t fitting_tokens(const Engine& engine, std::size_t tokens, std::size_t workers,
                           std::size_t room) noexcept {
    if (engine.workspace_bytes(tokens, workers) <= room) return tokens;
    std::size_t fits = 0;
    while (tokens - fits > 1) {
        const std::size_t middle = fits + (tokens - fits) / 2;
        (engine.workspace_bytes(middle, workers) <= room ? fits : tokens) = middle;
    }
    return fits;
}

// More tasks at a time than any machine runs; the workspaces of so many can be counted.
inline constexpr std::size_t most_workers = std::size_t{1} << 16;

// What every layer is, whatever its block and backend.
class layer_of_any_block {
public:
    // Makes the layer's own workspace one for `tokens` tokens in one piece; none for 0.
    // Errors: errc::workspace where there is no memory for it.
    status reserve(std::size_t tokens) {
        const std::size_t bytes = tokens ? workspace_bytes(tokens, workers_) : 0;
        workspace_ = workspace(bytes, std::nothrow);
        if (workspace_.size() == bytes) return {};
        return failure{errc::workspace, "tokens",
                       "are " + std::to_string(tokens) + "; there is no memory for the " +
                           std::to_string(bytes) + " bytes that they need at a time"};
    }

    [[nodiscard]] std::size_t d_model() const noexcept { return needs_.d_model; }
    // Of the first block of two sources, where a block is made of blocks.
    [[nodiscard]] std::size_t d_ff() const noexcept { return needs_.d_ff; }
    // Experts a token of the outermost part that routes; 0 where nothing does.
    [[nodiscard]] std::size_t choices() const noexcept { return needs_.choices; }
    // What calls have to bring.
    [[nodiscard]] const call_needs& needs() const noexcept { return needs_; }
    // The tensors whose memory the layer goes on reading where it was given; all others may be freed.
    [[nodiscard]] const std::vector<std::string>& reads_in_place() const noexcept { return needs_.in_place; }

    // Bytes for a call of `tokens` tokens with `workers` tasks at a time; fewer make it run in pieces.
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return engine_ ? engine_->workspace_bytes(tokens, workers) + aligned_buffer::line - 1 : 0;
    }
    [[nodiscard]] workspace make_workspace(std::size_t tokens, std::size_t workers) const {
        return workspace(workspace_bytes(tokens, workers));
    }

    template <class X, class Y>
    status try_call(const X& x, const token_inputs& inputs, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serial_) const {
        auto in = as_rows<const float>(x, d_model(), "x");
        if (!in) return in.failure();
        auto out = as_rows<float>(y, d_model(), "y");
        if (!out) return out.failure();
        return run(*in, inputs, *out, memory, execute);
    }
    template <class X, class Y>
    status try_call(const X& x, const token_inputs& inputs, Y&& y, executor_ref execute = serial_) {
        return std::as_const(*this).try_call(x, inputs, y, std::span<std::byte>(workspace_), execute);
    }
    template <class X, id_range Ids, class Y>
    status try_call(const X& x, const Ids& ids, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serial_) const {
        return try_call(x, token_inputs{.token_ids = ids}, y, memory, execute);
    }
    template <class X, id_range Ids, class Y>
    status try_call(const X& x, const Ids& ids, Y&& y, executor_ref execute = serial_) {
        return try_call(x, token_inputs{.token_ids = ids}, y, execute);
    }
#if TIFFIN_EXCEPTIONS
    template <class X, class Y>
    void operator()(const X& x, const token_inputs& inputs, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serial_) const {
        try_call(x, inputs, y, memory, execute).or_throw();
    }
    template <class X, class Y>
    void operator()(const X& x, const token_inputs& inputs, Y&& y, executor_ref execute = serial_) {
        try_call(x, inputs, y, execute).or_throw();
    }
    template <class X, id_range Ids, class Y>
    void operator()(const X& x, const Ids& ids, Y&& y, std::span<std::byte> memory,
                    executor_ref execute = serial_) const {
        try_call(x, token_inputs{.token_ids = ids}, y, memory, execute).or_throw();
    }
    template <class X, id_range Ids, class Y>
    void operator()(const X& x, const Ids& ids, Y&& y, executor_ref execute = serial_) {
        try_call(x, token_inputs{.token_ids = ids}, y, execute).or_throw();
    }
#endif

protected:
    layer_of_any_block(const binding& bound, std::size_t workers)
        : needs_(needs_of(bound)), workers_(workers) {}
    void hold(std::unique_ptr<const any_engine<call_arguments>> engine) {
        engine_ = std::move(engine);
    }

private:
    status run(matrix_view<const float> x, const token_inputs& inputs, matrix_view<float> y,
               std::span<std::byte> memory, executor_ref execute) const;

    static constexpr serial serial_{};
    call_needs needs_;
    std::size_t workers_;
    std::unique_ptr<const any_engine<call_arguments>> engine_;
    workspace workspace_;
};

inline status layer_of_any_block::run(matrix_view<const float> x, const token_inputs& inputs,
                                      matrix_view<float> y, std::span<std::byte> memory,
                                      executor_ref execute) const {
    if (!engine_) return failure{errc::empty, "layer", "holds nothing: it was moved from"};
    if (status s = check_call(needs_, x, inputs, y); !s) return s;
    if (x.rows == 0) return {};
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::size_t skip = (aligned_buffer::line - address % aligned_buffer::line) % aligned_buffer::line;
    const std::size_t room = memory.size() > skip ? memory.size() - skip : 0;
    // Workers give way before tokens do, and both before the call fails.
    std::size_t workers = std::min(execute.concurrency() ? execute.concurrency() : workers_, most_workers);
    while (workers > 1 && engine_->workspace_bytes(1, workers) > room) --workers;
    if (engine_->workspace_bytes(1, workers) > room)
        return failure{errc::workspace, "workspace",
                       "has " + std::to_string(memory.size()) + " bytes; one token needs " +
                           std::to_string(workspace_bytes(1, 1))};
    const std::size_t tokens = fitting_tokens(*engine_, x.rows, workers, room);
    const auto piece_of = [](const matrix_view<const float>& m, std::size_t first, std::size_t count) {
        return m.data ? m.rows_from(first, count) : m;
    };
    const matrix_view<float> carried = needs_.delay ? inputs.carried->slot(x.rows) : matrix_view<float>{};
    const bool due = needs_.delay != 0 && inputs.carried->due() != 0;
    for (std::size_t first = 0; first < x.rows; first += tokens) {
        const std::size_t count = std::min(tokens, x.rows - first);
        engine_->run({x.rows_from(first, count),
                      inputs.token_ids.empty() ? nullptr : inputs.token_ids.data() + first,
                      piece_of(inputs.residual, first, count),
                      piece_of(inputs.per_layer_input, first, count),
                      inputs.gathered.data(),
                      first,
                      nullptr,
                      count,
                      {y.rows_from(first, count)},
                      inputs.routes.empty() ? nullptr : inputs.routes.data() + first * needs_.choices,
                      needs_.delay ? carried.rows_from(first, count) : carried,
                      due,
                      memory.data() + skip,
                      workers,
                      execute});
    }
    if (needs_.delay) inputs.carried->advance(x.rows);
    return {};
}

}  // namespace detail

// A block with its weights, ready to run: y = block(x, inputs).
//
// Shapes: x and y (T, d_model) f32, one token a row; inputs: token ids (T) int32, or empty where the
//   block reads none; or token_inputs. Any T: calls of more tokens than the workspace holds run in pieces.
// Numerics: those of the backend. In `simd` a token's output is the same to the bit whatever batch
//   it rides in and however many threads run.
// Errors: errc::size, token_id, overlap, workspace, empty (moved from); found before y is written. The
//   throwing forms (operator()) throw tiffin::error, the others return a status. What an executor throws
//   passes.
// Threads: const calls with a workspace each may run at the same time; the calls without one use
//   the layer's own workspace and may not.
// Cost: no allocation in a call.
template <class Block, class Backend>
class layer : public detail::layer_of_any_block {
    static_assert(
        block_policy<Block>,
        "tiffin: prepare<Block>(weights, backend): Block is not a block; write ffn<gate<silu>, ...>");
    static_assert(backend_for<Backend, Block>,
                  "tiffin: prepare<Block>(weights, backend): the backend cannot run this block, or is none; "
                  "a backend has a member template `engine`: write reference<>{}, eigen{} or simd{}");

public:
    // `workers` tasks at a time for executors that do not tell their concurrency.
    layer(const Block& block, binding bound, std::size_t workers) : layer_of_any_block(bound, workers) {
        using engine = typename Backend::template engine<Block>;
        this->hold(
            std::make_unique<const detail::held_engine<call_arguments, engine>>(block, std::move(bound)));
    }
};

TIFFIN_END
