// From a composition and its weights to a layer that runs.
#pragma once

#include <tiffin/bind/bind_weights.hpp>
#include <tiffin/call/fitting_tokens.hpp>
#include <tiffin/call/layer.hpp>
#include <tiffin/executor/checked_executor.hpp>
#include <tiffin/executor/hardware_threads.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

TIFFIN_BEGIN

// Options of the preparation, and of the workspace for calls that give none.
struct prepare_options {
    // Tokens computed in one piece; more run in several. 0: no workspace, every call gives one.
    // Reduced where it would take more than `workspace_limit` bytes.
    std::size_t tokens = 512;
    std::size_t workspace_limit = std::size_t{48} << 20;
    // Concurrent tasks for executors that do not report their concurrency. 0: the machine's hardware threads.
    std::size_t workers = 0;
    // Runs the packing of the weights. It must outlive the preparation only.
    executor_ref execute = serially;
    // Reports progress after each tensor.
    prepare_progress progress{};
};

namespace detail {

// Gives a layer its own workspace.
inline status reserve(layer_of_any_block& prepared, std::size_t workers, const prepare_options& options) {
    // At most so many that the bytes do not overflow: a workspace grows at most as the tokens do.
    const std::size_t countable = ~std::size_t{0} / 4 / prepared.workspace_bytes(2, workers);
    std::size_t tokens = std::min(options.tokens, countable);
    while (tokens > 1 && prepared.workspace_bytes(tokens, workers) > options.workspace_limit) tokens /= 2;
    return prepared.reserve(tokens);
}

// Makes the engine of a block from its bound tensors.
struct engine_maker {
    const void* block;
    std::unique_ptr<const any_engine<call_arguments>> (*make)(const void* block, binding&& bound);
};

// The layer of a block that is already lowered.
result<layer_of_any_block> prepare_plan(const plan_node& block, const weights& given,
                                        const number_formats& formats, const engine_maker& engine,
                                        const prepare_options& options);
#if TIFFIN_DEFINITIONS
TIFFIN_INLINE result<layer_of_any_block> prepare_plan(const plan_node& block, const weights& given,
                                                      const number_formats& formats,
                                                      const engine_maker& engine,
                                                      const prepare_options& options) {
    prepared_bytes progress(options.progress, given);
    checked_executor execute(options.execute);
    auto bound = bind_plan(block, given, {formats, execute, &progress});
    if (!bound) return bound.failure();
    std::size_t workers = options.workers;
    if (workers == 0) workers = hardware_threads();
    workers = std::clamp(workers, std::size_t{1}, most_workers);
    call_needs needs = bound->needs;
    const preparation how = bound->how;
    auto made = engine.make(engine.block, *std::move(bound));
    needs.held_bytes = how.held();
    layer_of_any_block prepared(std::move(needs), workers, std::move(made));
    if (status s = execute.done(); !s) return s.failure();
    if (status s = reserve(prepared, workers, options); !s) return s.failure();
    progress.finish();
    return {std::move(prepared)};
}
#endif

template <class Block, class Backend>
std::unique_ptr<const any_engine<call_arguments>> make_engine(const void* block, binding&& bound) {
    using engine = typename Backend::template engine<Block>;
    static_assert(
        requires { sizeof(engine); },
        "tiffin: prepare<Block>(weights, backend): the backend is only declared here; include its header, "
        "tiffin/cpu/simd/simd.hpp for a block that tiffin/compiled.hpp does not name");
    static_assert(backend_for<Backend, Block>,
                  "tiffin: prepare<Block>(weights, backend): the backend cannot run this block");
    // Not by make_unique, which is twenty functions for each block.
    using held = std::unique_ptr<const any_engine<call_arguments>>;
    return held(
        new engine_adapter<call_arguments, engine>(*static_cast<const Block*>(block), std::move(bound)));
}

template <class Block, class Backend>
result<layer<Block, Backend>> prepare_here(const Block& block, const weights& given, const Backend& backend,
                                           const prepare_options& options) {
    number_formats formats;
    if constexpr (requires { backend.formats(); }) formats = backend.formats();
    auto made = prepare_plan(lower(block), given, formats,
                             {std::addressof(block), &make_engine<Block, Backend>}, options);
    if (!made) return made.failure();
    return layer<Block, Backend>(*std::move(made));
}

}  // namespace detail

// Prepares a block with given weights for a backend.
//
// Shapes: the tensors of tensors_needed(block, sizes) by name; their sizes must agree.
// Lifetime: the memory of the tensors that the layer names in reads_in_place() must outlive it; all other
//   given memory may be freed. Those are
//     simd<W, T>   tables and pools given in the format T;
//     eigen        these, and dense weights, banks and routers given so in f32;
//     reference    every tensor;
//     cuda<F>      tensors of more than one value that lie on the device in F.
// Errors: errc::missing_tensor, unused_tensor, duplicate_tensor, dtype, shape, value, naming the tensor;
//   errc::option, naming the option; errc::workspace if the workspace of prepare_options cannot be allocated;
//   errc::executor if the executor did not run each task once.
//   prepare() throws tiffin::error; try_prepare() returns the failure instead.
// Cost: one pass over the dense weights, and a packed copy of them in `simd`; tables are not copied
//   unless their format or alignment is not the backend's.
//
//     auto layer = tiffin::prepare<tiffin::stem>(weights, tiffin::simd{});
template <class Block, class Backend>
result<layer<Block, Backend>> try_prepare(const Block& block, const weights& given, const Backend& backend,
                                          const prepare_options& options = {}) {
    static_assert(
        block_policy<Block>,
        "tiffin: prepare<Block>(weights, backend): Block is not a block; write ffn<gate<silu>, ...>");
    // A backend with memory of its own makes its layers itself.
    if constexpr (requires { backend.prepare_layer(block, given, options); })
        return backend.prepare_layer(block, given, options);
    else {
        static_assert(
            requires { typename Backend::template engine<Block>; },
            "tiffin: prepare<Block>(weights, backend): the backend cannot run this block, or is none; "
            "a backend has a member template `engine`: write reference<>{}, eigen{} or simd{}");
        return detail::prepare_here(block, given, backend, options);
    }
}

template <class Block, class Backend>
result<layer<Block, Backend>> try_prepare(const weights& given, const Backend& backend,
                                          const prepare_options& options = {}) {
    return try_prepare(Block{}, given, backend, options);
}

#if TIFFIN_EXCEPTIONS
template <class Block, class Backend>
layer<Block, Backend> prepare(const Block& block, const weights& given, const Backend& backend,
                              const prepare_options& options = {}) {
    return try_prepare(block, given, backend, options).or_throw();
}

template <class Block, class Backend>
layer<Block, Backend> prepare(const weights& given, const Backend& backend,
                              const prepare_options& options = {}) {
    return try_prepare(Block{}, given, backend, options).or_throw();
}
#else
template <class Block = void, class... Given>
void prepare(const Given&...) {
    static_assert(sizeof...(Given) == 0,
                  "tiffin: prepare() throws, and exceptions are off here: use try_prepare(), which returns "
                  "the failure");
}
#endif

TIFFIN_END
