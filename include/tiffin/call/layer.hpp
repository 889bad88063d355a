// The concept of a backend, and the layer that a backend prepares.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/call/any_engine.hpp>
#include <tiffin/call/layer_of_any_block.hpp>
#include <tiffin/grammar/concepts.hpp>

// Compiled with this file, or in the library tiffin::compiled.
#if !defined(TIFFIN_COMPILED)
#    include <tiffin/call/run_layer.hpp>
#endif

#include <concepts>
#include <cstddef>
#include <memory>
#include <utility>

TIFFIN_BEGIN

// How a block is computed. A backend makes an engine from a block and its tensors: immutable,
// with all weights in the backend's layout.
template <class B, class Block>
concept backend_for = block_policy<Block> && std::constructible_from < typename B::template engine<Block>,
const Block&, binding > &&requires(const typename B::template engine<Block>& engine, std::size_t n,
                                   const call_arguments& call) {
    { engine.workspace_bytes(n, n) } -> std::same_as<std::size_t>;
    engine.run(call);
};

// A block with its weights, ready to run: y = block(x, inputs).
//
// Shapes: x and y (T, d_model) f32, one token per row; inputs: token ids (T) int32, or empty if the
//   block reads none; or token_inputs. Any T: calls of more tokens than the workspace holds run in pieces.
//   y may be x, or the residual, with the same rows: they are copied first. No other overlap is allowed.
// Numerics: those of the backend. In `simd` a token's output is bit-identical at any batch size and number of threads.
// Errors: errc::size, token_id, overlap, workspace, empty (moved from); found before y is written.
//   errc::executor if the executor did not run each task once: y is then invalid. The
//   throwing forms (operator()) throw tiffin::error, the others return a status. Executor exceptions propagate.
// Threads: const calls with a workspace each may run at the same time; the calls without one use
//   the layer's own workspace and may not.
// Cost: no allocation in a call.
template <class Block, class Backend>
class layer : public detail::layer_of_any_block {
    static_assert(
        block_policy<Block>,
        "tiffin: prepare<Block>(weights, backend): Block is not a block; write ffn<gate<silu>, ...>");

public:
    // For prepare().
    explicit layer(detail::layer_of_any_block made) : layer_of_any_block(std::move(made)) {}
};

TIFFIN_END
