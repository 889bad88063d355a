// The backend `cuda`, and the layers it prepares.
//
// Write tiffin::cuda, and no `using namespace tiffin` at the outermost level of a file that nvcc reads: the
// toolkit has a namespace ::cuda, which the code that nvcc generates names without the colons.
#pragma once

#include <tiffin/call/fitting_tokens.hpp>
#include <tiffin/call/layer.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/cuda/call_checks.hpp>
#include <tiffin/cuda/device.hpp>
#include <tiffin/format/concepts.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Blocks on an NVIDIA device: the one that is current when they are prepared.
// Numerics: weights, tables, activations and the products that cuBLASLt computes are kept in Format (f32, bf16 or f16),
//   sums and formulas in f32, without TF32. Calls of up to four tokens keep their products in f32, except those of a
//   mixture's experts. The order of sums is unspecified. Routers' weights, biases and norms' weights are f32.
// Errors: errc::device with CUDA's message; else those of the other backends.
// Cost: dense products by cuBLASLt (a mixture's experts: in tiles of our own), one more kernel per source: the formula
//   with all its table rows. prepare() waits for `stream`, and allocates a workspace for all prepare_options::tokens:
//   workspace_limit is of host memory.
template <codec Format = f32>
struct cuda {
    cudaStream_t stream = nullptr;  // of prepare(), and of calls without a stream

    static constexpr number_formats formats() noexcept {
        return {describe(Format{}), describe(Format{}),        describe(f32{}), false,
                in_place::nothing,  cuda_detail::bring_to_host};
    }
    template <class Block>
    result<layer<Block, cuda>> prepare_layer(const Block& block, const weights& given,
                                             const prepare_options& options) const;
};
cuda(cudaStream_t)->cuda<f32>;

// A block with its weights on a device: y = block(x, inputs), enqueued on a stream.
//
// Shapes: as for every layer, with all memory on the device: x and y (T, d_model) as Format, token ids
//   int32. Calls of more tokens than the workspace holds run in pieces.
// Errors: sizes, memory that is not the device's, overlap: returned by the call. An error of the stream: errc::device.
//   A token id outside its table is found on the device before its row is read: row 0 is read instead, and
//   synchronise() reports the id.
// Threads: const calls with a workspace each may run at the same time, on a stream each. An id that one of them refused
//   is reported by the next synchronise(), on any stream.
// Lifetime: the layer, the workspace and all memory of a call must live until its work on the stream has ended.
// Cost: no allocation and no synchronisation in a call; it can be captured in a graph. (A delayed block's call is
//   captured with the current slot of `carried`: capture the passes of a whole cycle.)
template <class Block, codec Format>
class layer<Block, cuda<Format>> {
    static_assert(block_policy<Block>,
                  "tiffin: prepare<Block>(weights, cuda{stream}): Block is not a block; write "
                  "ffn<gate<silu>, ...>");
    static_assert(
        !own_width_block<Block>,
        "tiffin: prepare<Block>(weights, cuda{stream}): the device computes blocks that are as wide as "
        "the model; cuBLASLt multiplies by a single weight");

public:
    using storage = typename Format::storage;
    using inputs_type = device_inputs<Format>;

    [[nodiscard]] std::size_t d_model() const noexcept { return needs_.d_model; }
    [[nodiscard]] std::size_t d_ff() const noexcept { return needs_.d_ff; }
    [[nodiscard]] std::size_t choices() const noexcept { return needs_.choices; }
    [[nodiscard]] const call_needs& needs() const noexcept { return needs_; }
    // The tensors whose memory, on the device, the layer may go on reading; all others may be freed.
    [[nodiscard]] const std::vector<std::string>& reads_in_place() const noexcept { return needs_.in_place; }
    // Bytes of weights in device memory of the layer's own.
    [[nodiscard]] std::size_t held_bytes() const noexcept { return needs_.held_bytes; }
    // Tokens that the layer's own workspace holds at a time.
    [[nodiscard]] std::size_t tokens() const noexcept { return tokens_; }
    // Bytes of device memory for a call of `tokens` tokens in one piece, also where y is x.
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens) const noexcept {
        return bytes_of_a_piece(tokens) + 255;
    }

    // X, Y: matrix_view of device memory. `memory`: workspace_bytes(T) on the device.
    template <class X, class Y>
    status try_call(const matrix_view<X>& x, const inputs_type& inputs, const matrix_view<Y>& y,
                    std::span<std::byte> memory, cudaStream_t stream) const {
        static_assert(
            cuda_detail::number_of<std::remove_const_t<X>, Format> && cuda_detail::number_of<Y, Format>,
            "tiffin: a layer on the device is called with matrix_view of its own number format: "
            "float, __nv_bfloat16 or __half (or their bits), y not const");
        return run({reinterpret_cast<const storage*>(x.data), x.rows, x.cols, x.stride}, inputs,
                   {reinterpret_cast<storage*>(y.data), y.rows, y.cols, y.stride}, memory, stream);
    }
    template <class X, class Y>
    status try_call(const matrix_view<X>& x, const inputs_type& inputs, const matrix_view<Y>& y) {
        return try_call(x, inputs, y, {workspace_.data(), workspace_.size()}, stream_);
    }
    // Waits for the stream, and reports an id outside its table since the last time: of several the one at the smallest
    // position.
    [[nodiscard]] status synchronise(cudaStream_t stream) const;
    [[nodiscard]] status synchronise() const { return synchronise(stream_); }
#if TIFFIN_EXCEPTIONS
    template <class X, class Y>
    void operator()(const matrix_view<X>& x, const inputs_type& inputs, const matrix_view<Y>& y) {
        try_call(x, inputs, y).or_throw();
    }
    template <class X, class Y>
    void operator()(const matrix_view<X>& x, const inputs_type& inputs, const matrix_view<Y>& y,
                    std::span<std::byte> memory, cudaStream_t stream) const {
        try_call(x, inputs, y, memory, stream).or_throw();
    }
#endif

private:
    using engine_type = engine_detail::layer_rows<cuda_detail::device<Format>, Block>;
    using call_type = cuda_detail::device_call<Format>;
    friend struct cuda<Format>;

    layer(call_needs needs, engine_type engine) : needs_(std::move(needs)), engine_(std::move(engine)) {}
    status run(const matrix_view<const storage>& x, const inputs_type& inputs, const matrix_view<storage>& y,
               std::span<std::byte> memory, cudaStream_t stream) const;
    // With copies of x, and of the residual if it is read, for calls where y overwrites them.
    [[nodiscard]] std::size_t bytes_of_a_piece(std::size_t tokens) const noexcept {
        cuda_detail::device_arena copies;
        copies.take<storage>(tokens * needs_.d_model);
        if (needs_.residual) copies.take<storage>(tokens * needs_.d_model);
        return copies.used() + engine_.workspace_bytes(tokens, 1);
    }

    call_needs needs_;
    engine_type engine_;
    std::shared_ptr<cuda_detail::blas> blas_;
    std::vector<cuda_detail::device_memory> weights_;
    cuda_detail::device_memory workspace_;
    cuda_detail::device_memory refused_;
    std::size_t tokens_ = 0;
    int device_ = 0;
    cudaStream_t stream_ = nullptr;
};

template <codec Format>
template <class Block>
result<layer<Block, cuda<Format>>> cuda<Format>::prepare_layer(const Block& block, const weights& given,
                                                               const prepare_options& options) const {
    using namespace cuda_detail;
    int device = 0;
    if (status s = checked(cudaGetDevice(&device), "device"); !s) return s.failure();
    if (status s = check_stream(stream, device); !s) return s.failure();
    if (status s = check_idle(stream); !s) return s.failure();
    // `stream` may still be writing weights that are on the device.
    if (status s = checked(cudaStreamSynchronize(stream), "stream"); !s) return s.failure();
    auto readable = readable_weights::make(given, Format::type, device);
    if (!readable) return readable.failure();
    auto bound = bind_weights(block, readable->get(), preparation{formats()});
    if (!bound) return bound.failure();
    bound->needs.in_place = readable->staying();
    auto products_by = blas::make();
    if (!products_by) return products_by.failure();
    uploads up(**products_by, device);
    layer<Block, cuda> made(bound->needs,
                            engine_detail::layer_rows<cuda_detail::device<Format>, Block>(block, *bound, up));
    if (!up.outcome()) return up.outcome().failure();
    auto workspace = options.tokens == 0
                         ? result<device_memory>(device_memory())
                         : device_memory::make(made.workspace_bytes(options.tokens), "workspace");
    if (!workspace) return workspace.failure();
    const unsigned long long none = refused_ids::none;
    const unsigned long long* const refused = up.copy(&none, 1);
    if (refused == nullptr) return up.outcome().failure();
    // Copies may still be under way on the default stream, which `stream` need not wait for.
    if (status s = checked(cudaStreamSynchronize(nullptr), "weights"); !s) return s.failure();
    made.blas_ = *std::move(products_by);
    made.weights_ = up.take();
    made.refused_ = std::move(made.weights_.back());
    made.weights_.pop_back();
    for (const device_memory& held : made.weights_) made.needs_.held_bytes += held.size();
    made.workspace_ = *std::move(workspace);
    made.tokens_ = options.tokens;
    made.device_ = device;
    made.stream_ = stream;
    return {std::move(made)};
}

template <class Block, codec Format>
status layer<Block, cuda<Format>>::run(const matrix_view<const storage>& x, const inputs_type& inputs,
                                       const matrix_view<storage>& y, std::span<std::byte> memory,
                                       cudaStream_t stream) const {
    using namespace cuda_detail;
    if (status s = check_device_call<Format>(needs_, device_, x, inputs, y); !s) return s;
    if (status s = check_stream(stream, device_); !s) return s;
    if (x.rows == 0) return {};
    if (!memory.empty())
        if (status s = check_memory(memory.data(), "workspace", device_); !s) return s;
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::size_t skip = (256 - address % 256) % 256;
    const std::size_t room = memory.size() > skip ? memory.size() - skip : 0;
    const bool onto_x = detail::is_same_matrix(x, y),
               onto_residual = needs_.residual && detail::is_same_matrix(inputs.residual, y);
    const std::size_t tokens =
        detail::fitting_tokens([&](std::size_t count) { return bytes_of_a_piece(count); }, x.rows, room);
    if (tokens == 0)
        return failure(errc::workspace, "workspace", "has ", memory.size(),
                       " bytes of device memory; one token needs ", workspace_bytes(1));
    const matrix_view<float> carried = needs_.delay ? inputs.carried->slot(x.rows) : matrix_view<float>{};
    launches out(stream);
    for (std::size_t first = 0; first < x.rows; first += tokens) {
        const std::size_t count = std::min(tokens, x.rows - first);
        call_type piece;
        detail::set_piece(piece, inputs, needs_.choices, first, count);
        piece.x = x.rows_from(first, count);
        piece.tokens = {count, nullptr, nullptr};
        piece.to = {y.row(first), y.stride};
        device_arena areas(memory.data() + skip);
        const auto copy = [&](matrix_view<const storage>& of) {
            auto* const rows = areas.take<storage>(count * of.cols);
            gather<Format>(out, {of.data, of.stride}, nullptr, piece.tokens, of.cols, rows);
            of = {rows, count, of.cols};
        };
        if (onto_x) copy(piece.x);
        if (onto_residual) copy(piece.residual);
        piece.workspace = areas.rest();
        if (needs_.delay) piece.carried = carried.rows_from(first, count);
        piece.carried_is_due = needs_.delay != 0 && inputs.carried->due() != 0;
        piece.refused = {refused_.template as<unsigned long long>()};
        piece.out = &out;
        engine_.run(piece);
    }
    if (needs_.delay && out.going()) inputs.carried->advance(x.rows);
    return out.outcome();
}

template <class Block, codec Format>
status layer<Block, cuda<Format>>::synchronise(cudaStream_t stream) const {
    using namespace cuda_detail;
    if (status s = check_current(device_); !s) return s;
    if (status s = check_stream(stream, device_); !s) return s;
    unsigned long long key = 0;
    if (status s = take_refused({refused_.template as<unsigned long long>()}, key, stream); !s) return s;
    return key == refused_ids::none ? status{} : refusal_of(needs_, key);
}

TIFFIN_END
