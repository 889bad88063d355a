// What a backend is, and the layer it prepares.
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

// How a block is computed. An engine is what a backend makes of a block and its tensors: immutable,
// with all weights in the form that the machine likes.
template <class B, class Block>
concept backend_for = block_policy<Block> && std::constructible_from < typename B::template engine<Block>,
const Block&, binding > &&requires(const typename B::template engine<Block>& engine, std::size_t n,
                                   const call_arguments& call) {
    { engine.workspace_bytes(n, n) } -> std::same_as<std::size_t>;
    engine.run(call);
};

// A block with its weights, ready to run: y = block(x, inputs).
//
// Shapes: x and y (T, d_model) f32, one token a row; inputs: token ids (T) int32, or empty where the
//   block reads none; or token_inputs. Any T: calls of more tokens than the workspace holds run in pieces.
//   y may be x, or the residual, row by row: they are copied first. It may overlap nothing else, nor them shifted.
// Numerics: those of the backend. In `simd` a token's output is the same to the bit whatever batch
//   it rides in and however many threads run.
// Errors: errc::size, token_id, overlap, workspace, empty (moved from); found before y is written.
//   errc::executor where the executor did not run each task once: y is then not to be used. The
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

public:
    // `workers` tasks at a time for executors that do not tell their concurrency.
    layer(const Block& block, binding bound, std::size_t workers) : layer_of_any_block(bound.needs, workers) {
        using engine = typename Backend::template engine<Block>;
        static_assert(
            requires { sizeof(engine); },
            "tiffin: prepare<Block>(weights, backend): the backend is only declared here; include its "
            "header, "
            "tiffin/cpu/simd/simd.hpp for a block that tiffin/compiled.hpp does not name");
        static_assert(backend_for<Backend, Block>,
                      "tiffin: prepare<Block>(weights, backend): the backend cannot run this block");
        const preparation how = bound.how;
        this->hold(
            std::make_unique<const detail::held_engine<call_arguments, engine>>(block, std::move(bound)),
            how);
    }
};

TIFFIN_END
