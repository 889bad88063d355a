// Dense products of a stage: by cuBLASLt, by tiles where only the device knows the number of tokens.
#pragma once

#include <tiffin/cuda/call.hpp>
#include <tiffin/cuda/tiled_product.hpp>
#include <tiffin/cuda/uploads.hpp>

#include <cublasLt.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

TIFFIN_BEGIN

namespace cuda_detail {

template <codec Format>
constexpr cudaDataType_t cuda_type() noexcept {
    static_assert(std::is_same_v<Format, f32> || std::is_same_v<Format, bf16> || std::is_same_v<Format, f16>,
                  "tiffin: cuda<Format>: the device computes in f32, bf16 or f16");
    return std::is_same_v<Format, f32> ? CUDA_R_32F : std::is_same_v<Format, bf16> ? CUDA_R_16BF : CUDA_R_16F;
}

// cuBLASLt's own scratch memory: what it asks for on Hopper.
inline constexpr std::size_t blas_bytes = std::size_t{32} << 20;

inline std::uint32_t alignment_of(const void* data) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    std::uint32_t alignment = 256;
    while (address % alignment != 0) alignment /= 2;
    return alignment;
}

// out (tokens, outputs) = x (tokens, inputs) W^T, all in Format.
// Numerics: f32 sums in cuBLASLt's order, without TF32; rounded to Format once.
// False where cuBLASLt knows no way, and nothing was launched.
template <codec Format>
bool blas_product(cublasLtHandle_t blas, const activations<Format>& in, std::size_t tokens,
                  const typename Format::storage* weights, std::size_t outputs, std::size_t inputs,
                  typename Format::storage* out, std::byte* memory, launches& to) {
    // cuBLASLt counts rows downwards: what it sees is out^T = W x^T.
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulPreferenceOpaque_t wish;
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const auto transposed = CUBLAS_OP_T;
    const std::size_t room = blas_bytes;
    const auto type = cuda_type<Format>();
    const std::array<std::uint32_t, 3> lies{alignment_of(weights), alignment_of(in.data), alignment_of(out)};
    const auto wants = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
        return cublasLtMatmulPreferenceSetAttribute(&wish, what, &value, sizeof value) ==
               CUBLAS_STATUS_SUCCESS;
    };
    const bool ready =
        cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof transposed) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutInit(&a, type, inputs, outputs, static_cast<std::int64_t>(inputs)) ==
            CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutInit(&b, type, inputs, tokens, static_cast<std::int64_t>(in.stride)) ==
            CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutInit(&c, type, outputs, tokens, static_cast<std::int64_t>(outputs)) ==
            CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulPreferenceInit(&wish) == CUBLAS_STATUS_SUCCESS &&
        wants(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, room) &&
        wants(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, lies[0]) &&
        wants(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, lies[1]) &&
        wants(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, lies[2]) &&
        wants(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, lies[2]) &&
        cublasLtMatmulAlgoGetHeuristic(blas, &product, &a, &b, &c, &c, &wish, 1, &found, &count) ==
            CUBLAS_STATUS_SUCCESS &&
        count > 0;
    if (!ready) return false;
    const float one = 1, zero = 0;
    return cublasLtMatmul(blas, &product, &one, weights, &a, in.data, &b, &zero, out, &c, out, &c,
                          &found.algo, memory, room, to.stream()) == CUBLAS_STATUS_SUCCESS;
}

// Count weights (outputs, inputs) times the same activations.
template <codec Format, std::size_t Count>
class dense_products {
public:
    using storage = typename Format::storage;

    dense_products(std::size_t outputs, std::size_t inputs, cublasLtHandle_t blas) noexcept
        : outputs_(outputs), inputs_(inputs), blas_(blas) {}
    void keep(std::size_t i, const storage* weights) noexcept { weights_[i] = weights; }
    [[nodiscard]] const storage* weights(std::size_t i) const noexcept { return weights_[i]; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }

    // Planes of (tokens, outputs), one a weight, then cuBLASLt's memory.
    static constexpr bool is_any = Count > 0;
    [[nodiscard]] std::size_t bytes(std::size_t tokens) const noexcept {
        return is_any ? plane(tokens) * Count * sizeof(storage) + blas_bytes : 0;
    }
    // Numbers from one plane to the next: each begins on a line of 256 bytes.
    [[nodiscard]] std::size_t plane(std::size_t tokens) const noexcept {
        return (tokens * outputs_ + 127) / 128 * 128;
    }
    void run(const token_range& tokens, const activations<Format>& in, storage* planes,
             launches& out) const noexcept {
        auto* const memory = reinterpret_cast<std::byte*>(planes + plane(tokens.most) * Count);
        for (std::size_t i = 0; i != Count && tokens.most > 0; ++i)
            one(tokens, in, weights_[i], planes + i * plane(tokens.most), memory, out);
    }
    // One product straight to where it belongs: rows of `outputs` numbers one after the other.
    void one(const token_range& tokens, const activations<Format>& in, const storage* weights, storage* to,
             std::byte* memory, launches& out) const noexcept {
        if (!out.going()) return;
        if (tokens.span == nullptr &&
            blas_product<Format>(blas_, in, tokens.most, weights, outputs_, inputs_, to, memory, out))
            return;
        multiply(out, tokens.most,
                 tiled_product<Format, rows_in_order<Format>, into_plane<Format>>{
                     weights, 1, outputs_, inputs_, tokens.span, tokens.most, {in}, {to, outputs_}});
    }

private:
    std::size_t outputs_;
    std::size_t inputs_;
    cublasLtHandle_t blas_;
    std::array<const storage*, Count + 1> weights_{};
};

}  // namespace cuda_detail

TIFFIN_END
