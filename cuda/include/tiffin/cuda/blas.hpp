// Products by cuBLASLt, whose choice of an algorithm is cached per shape.
#pragma once

#include <tiffin/cuda/runtime.hpp>
#include <tiffin/format/bf16.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/format/f16.hpp>
#include <tiffin/format/f32.hpp>
#include <tiffin/grammar/concepts.hpp>

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>

TIFFIN_BEGIN

namespace cuda_detail {

template <codec Format>
constexpr cudaDataType_t cuda_type() noexcept {
    static_assert(std::is_same_v<Format, f32> || std::is_same_v<Format, bf16> || std::is_same_v<Format, f16>,
                  "tiffin: cuda<Format>: the device computes in f32, bf16 or f16");
    return std::is_same_v<Format, f32> ? CUDA_R_32F : std::is_same_v<Format, bf16> ? CUDA_R_16BF : CUDA_R_16F;
}

// The largest power of two, at most 256 bytes, that an address is a multiple of.
inline std::uint32_t alignment_of(const void* data) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    std::uint32_t alignment = 256;
    while (address % alignment != 0) alignment /= 2;
    return alignment;
}

// The key of the cache: all that cuBLASLt's choice of an algorithm depends on.
struct product_shape {
    cudaDataType_t type;
    std::size_t tokens, outputs, inputs, stride;
    std::array<std::uint32_t, 3> alignments;  // of the weights, of the activations, of the products

    friend bool operator==(const product_shape&, const product_shape&) = default;
};

// A cuBLASLt handle, with a cache of the algorithms for the latest shapes.
// Threads: any number at a time, each with its own scratch memory.
// Cost: one query per shape, not per product; beyond 64 shapes the oldest entry is replaced.
class blas {
public:
    // Scratch memory of a product: the workspace size of cuBLASLt on Hopper.
    static constexpr std::size_t memory_bytes = std::size_t{32} << 20;

    static result<std::shared_ptr<blas>> make() {
        cublasLtHandle_t handle = nullptr;
        if (const cublasStatus_t code = cublasLtCreate(&handle); code != CUBLAS_STATUS_SUCCESS)
            return failure(errc::device, "cublasLtCreate", cublasLtGetStatusString(code));
        return std::make_shared<blas>(handle);
    }
    explicit blas(cublasLtHandle_t handle) noexcept : handle_(handle) {}
    blas(const blas&) = delete;
    blas& operator=(const blas&) = delete;
    ~blas() { static_cast<void>(cublasLtDestroy(handle_)); }

    // out (tokens, outputs) = x (tokens, inputs) W^T, all in Format, rows of x `stride` elements apart.
    // Numerics: f32 sums in cuBLASLt's order, without TF32; rounded to Format once.
    // Errors: CUBLAS_STATUS_NOT_SUPPORTED where cuBLASLt has no algorithm; nothing was launched then.
    template <codec Format>
    cublasStatus_t product(const typename Format::storage* x, std::size_t stride, std::size_t tokens,
                           const typename Format::storage* weights, std::size_t outputs, std::size_t inputs,
                           typename Format::storage* out, std::byte* memory, cudaStream_t stream) {
        return product({cuda_type<Format>(),
                        tokens,
                        outputs,
                        inputs,
                        stride,
                        {alignment_of(weights), alignment_of(x), alignment_of(out)}},
                       x, weights, out, memory, stream);
    }

private:
    struct known_way {
        product_shape shape;
        cublasLtMatmulAlgo_t way;
    };
    // cuBLASLt is column-major: it computes out^T = W x^T.
    struct description {
        cublasLtMatmulDescOpaque_t product;
        cublasLtMatrixLayoutOpaque_t a, b, c;
    };

    cublasStatus_t product(const product_shape& shape, const void* x, const void* weights, void* out,
                           std::byte* memory, cudaStream_t stream) {
        description d;
        cublasLtMatmulAlgo_t way;
        if (!describe(shape, d) || !find(shape, d, way)) return CUBLAS_STATUS_NOT_SUPPORTED;
        const float one = 1, zero = 0;
        return cublasLtMatmul(handle_, &d.product, &one, weights, &d.a, x, &d.b, &zero, out, &d.c, out, &d.c,
                              &way, memory, memory_bytes, stream);
    }
    static bool describe(const product_shape& s, description& d) {
        const auto transposed = CUBLAS_OP_T;
        const auto layout = [&](cublasLtMatrixLayoutOpaque_t& m, std::size_t rows, std::size_t columns,
                                std::size_t stride) {
            return cublasLtMatrixLayoutInit(&m, s.type, rows, columns, static_cast<std::int64_t>(stride)) ==
                   CUBLAS_STATUS_SUCCESS;
        };
        return cublasLtMatmulDescInit(&d.product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
               cublasLtMatmulDescSetAttribute(&d.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                              sizeof transposed) == CUBLAS_STATUS_SUCCESS &&
               layout(d.a, s.inputs, s.outputs, s.inputs) && layout(d.b, s.inputs, s.tokens, s.stride) &&
               layout(d.c, s.outputs, s.tokens, s.outputs);
    }
    bool find(const product_shape& shape, description& d, cublasLtMatmulAlgo_t& way) {
        const std::lock_guard lock(mutex_);
        const std::size_t known = std::min(found_, known_.size());
        for (std::size_t i = 0; i < known; ++i)
            if (known_[i].shape == shape) {
                way = known_[i].way;
                return true;
            }
        cublasLtMatmulPreferenceOpaque_t wish;
        cublasLtMatmulHeuristicResult_t answer{};
        int count = 0;
        const auto wants = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
            return cublasLtMatmulPreferenceSetAttribute(&wish, what, &value, sizeof value) ==
                   CUBLAS_STATUS_SUCCESS;
        };
        const auto& [of_a, of_b, of_c] = shape.alignments;
        // Partial sums of a split k are added in the compute type, not in bf16 or f16.
        const std::uint32_t parts = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        const bool is_found =
            cublasLtMatmulPreferenceInit(&wish) == CUBLAS_STATUS_SUCCESS &&
            wants(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, memory_bytes) &&
            wants(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, parts) &&
            wants(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_a) &&
            wants(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_b) &&
            wants(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_c) &&
            wants(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_c) &&
            cublasLtMatmulAlgoGetHeuristic(handle_, &d.product, &d.a, &d.b, &d.c, &d.c, &wish, 1, &answer,
                                           &count) == CUBLAS_STATUS_SUCCESS &&
            count > 0 && answer.state == CUBLAS_STATUS_SUCCESS;
        if (!is_found) return false;
        way = answer.algo;
        known_[found_++ % known_.size()] = {shape, way};
        return true;
    }

    cublasLtHandle_t handle_;
    std::mutex mutex_;
    std::array<known_way, 64> known_{};  // the oldest entry is replaced
    std::size_t found_ = 0;
};

}  // namespace cuda_detail

TIFFIN_END
