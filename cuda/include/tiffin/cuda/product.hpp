// Dense products of a stage: by cuBLASLt, or in tiles where only the device has the number of tokens.
#pragma once

#include <tiffin/cuda/blas.hpp>
#include <tiffin/cuda/call.hpp>
#include <tiffin/cuda/tiled_product.hpp>
#include <tiffin/cuda/uploads.hpp>
#include <tiffin/format/concepts.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

TIFFIN_BEGIN

namespace cuda_detail {

// Count weights (outputs, inputs) times the same activations.
template <codec Format, std::size_t Count>
class dense_products {
public:
    using storage = typename Format::storage;

    dense_products(std::size_t outputs, std::size_t inputs, std::span<const dtype>, uploads& up) noexcept
        : outputs_(outputs), inputs_(inputs), blas_(&up.products_by()) {}
    void keep(std::size_t i, const tensor_view& weight, uploads& up) {
        weights_[i] = up.numbers<Format>(weight);
    }
    [[nodiscard]] const auto& weights() const noexcept { return weights_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }

    // Planes of (tokens, outputs), one per weight, then cuBLASLt's memory.
    static constexpr bool is_any = Count > 0;
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t /*workers*/) const noexcept {
        return is_any ? plane(tokens) * Count * sizeof(storage) + blas::memory_bytes : 0;
    }
    // Elements between two planes: each begins at a multiple of 256 bytes.
    [[nodiscard]] std::size_t plane(std::size_t tokens) const noexcept {
        return (tokens * outputs_ + 127) / 128 * 128;
    }
    void run(const token_range& tokens, const activations<Format>& in, storage* planes,
             launches& out) const noexcept {
        auto* const memory = reinterpret_cast<std::byte*>(planes + plane(tokens.most) * Count);
        for (std::size_t i = 0; i != Count && tokens.most > 0; ++i)
            one(tokens, in, weights_[i], planes + i * plane(tokens.most), memory, out);
    }
    // One product written to its destination: contiguous rows of `outputs` elements.
    void one(const token_range& tokens, const activations<Format>& in, const storage* weights, storage* to,
             std::byte* memory, launches& out) const noexcept {
        if (!out.going()) return;
        if (tokens.span == nullptr) {
            const cublasStatus_t code = blas_->product<Format>(in.data, in.stride, tokens.most, weights,
                                                               outputs_, inputs_, to, memory, out.stream());
            if (code == CUBLAS_STATUS_SUCCESS) return;
            if (code != CUBLAS_STATUS_NOT_SUPPORTED)
                return out.refuse(cudaErrorUnknown, cublasLtGetStatusString(code));
        }
        multiply(out, tokens.most,
                 tiled_product<Format, rows_in_order<Format>, into_plane<Format>>{
                     weights, 1, outputs_, inputs_, tokens.span, tokens.most, {in}, {to, outputs_}});
    }

private:
    std::size_t outputs_;
    std::size_t inputs_;
    blas* blas_;
    std::array<const storage*, Count + 1> weights_{};
};

}  // namespace cuda_detail

TIFFIN_END
