// From a composition and its weights to a layer that runs.
#pragma once

#include <tiffin/backend/backend.hpp>

#include <cstddef>
#include <thread>
#include <utility>

TIFFIN_BEGIN

// What a layer keeps ready for the calls that bring no workspace of their own.
struct prepare_options {
    // Tokens computed in one piece; more run in several. 0: no workspace, every call brings one.
    // Reduced where it would take more than `workspace_limit` bytes.
    std::size_t tokens = 512;
    std::size_t workspace_limit = std::size_t{48} << 20;
    // Tasks at a time for executors that do not tell their concurrency. 0: as many as the machine runs.
    std::size_t workers = 0;
};

namespace detail {

// Gives a layer its own workspace.
inline void reserve(layer_of_any_block& prepared, std::size_t workers, const prepare_options& options) {
    std::size_t tokens = options.tokens;
    while (tokens > 1 && prepared.workspace_bytes(tokens, workers) > options.workspace_limit) tokens /= 2;
    prepared.reserve(tokens);
}

template <class Block, class Backend>
result<layer<Block, Backend>> prepare_here(const Block& block, const weights& given, const Backend& backend,
                                           const prepare_options& options) {
    number_formats formats;
    if constexpr (requires { backend.formats(); }) formats = backend.formats();
    auto bound = bind_weights(block, given, formats);
    if (!bound) return bound.failure();
    std::size_t workers = options.workers;
    if (workers == 0) workers = std::thread::hardware_concurrency();
    if (workers == 0) workers = 1;
    layer<Block, Backend> prepared(block, *std::move(bound), workers);
    reserve(prepared, workers, options);
    return {std::move(prepared)};
}

}  // namespace detail

// Prepares a block with given weights for a backend.
//
// Shapes: the tensors of tensors_needed(block, sizes) by name; their sizes must agree.
// Lifetime: the given memory must outlive the layer, which may read it in place. `simd` reads only
//   f32 tables in place: dense weights may be freed once it has packed them.
// Errors: errc::missing_tensor, unused_tensor, duplicate_tensor, dtype, shape, naming the tensor.
//   prepare() throws tiffin::error; try_prepare() returns the failure instead.
// Cost: one pass over the dense weights, and a packed copy of them in `simd`; tables are not copied
//   unless their format or alignment is not the backend's.
//
//     auto layer = tiffin::prepare<tiffin::stem>(weights, tiffin::simd{});
template <class Block, class Backend>
result<layer<Block, Backend>> try_prepare(const Block& block, const weights& given, const Backend& backend,
                                          const prepare_options& options = {}) {
    // A backend with memory of its own makes its layers itself.
    if constexpr (requires { backend.prepare_layer(block, given, options); })
        return backend.prepare_layer(block, given, options);
    else
        return detail::prepare_here(block, given, backend, options);
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
