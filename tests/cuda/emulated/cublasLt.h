// cuBLASLt's products on the emulated device: plain sums, for the few options that tiffin uses.
#pragma once

#include "cuda_runtime.h"

#include <tiffin/format/bf16.hpp>
#include <tiffin/format/f16.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_INITIALIZED, CUBLAS_STATUS_NOT_SUPPORTED };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasLtMatmulDescAttributes_t { CUBLASLT_MATMUL_DESC_TRANSA };
enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};
enum cublasLtReductionScheme_t { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 };
struct cublasLtContext {};
using cublasLtHandle_t = cublasLtContext*;
struct cublasLtMatmulDescOpaque_t {
    cublasOperation_t a = CUBLAS_OP_N;
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    std::uint64_t rows, cols;
    std::int64_t ld;

    friend bool operator==(const cublasLtMatrixLayoutOpaque_t&,
                           const cublasLtMatrixLayoutOpaque_t&) = default;
};
struct cublasLtMatmulPreferenceOpaque_t {};
struct cublasLtMatmulAlgo_t {
    cublasLtMatrixLayoutOpaque_t a, b, c;  // what it was found for
};
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    cublasStatus_t state;
};

inline const char* cublasLtGetStatusString(cublasStatus_t) {
    return "as its name says";
}
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* to) {
    *to = new cublasLtContext;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDescOpaque_t* to, cublasComputeType_t,
                                             cudaDataType_t) {
    *to = {};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDescOpaque_t* to,
                                                     cublasLtMatmulDescAttributes_t, const void* value,
                                                     std::size_t bytes) {
    std::memcpy(&to->a, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayoutOpaque_t* to, cudaDataType_t type,
                                               std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
    *to = {type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreferenceOpaque_t*) {
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreferenceOpaque_t*,
                                                           cublasLtMatmulPreferenceAttributes_t, const void*,
                                                           std::size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDescOpaque_t*, cublasLtMatrixLayoutOpaque_t* a,
    cublasLtMatrixLayoutOpaque_t* b, cublasLtMatrixLayoutOpaque_t* c, cublasLtMatrixLayoutOpaque_t*,
    cublasLtMatmulPreferenceOpaque_t*, int, cublasLtMatmulHeuristicResult_t* found, int* count) {
    ++emulated::device().blas_questions;
    found->algo = {*a, *b, *c};
    found->state = CUBLAS_STATUS_SUCCESS;
    *count = emulated::device().blas_knows_a_way ? 1 : 0;
    return *count == 1 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

namespace emulated {

inline float number_at(const void* data, cudaDataType_t type, std::size_t i) {
    if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
    const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
    return type == CUDA_R_16BF ? tiffin::bf16_to_f32(bits) : tiffin::f16_to_f32(bits);
}
inline void put_number(float value, void* data, cudaDataType_t type, std::size_t i) {
    if (type == CUDA_R_32F)
        static_cast<float*>(data)[i] = value;
    else
        static_cast<std::uint16_t*>(data)[i] =
            type == CUDA_R_16BF ? tiffin::f32_to_bf16(value) : tiffin::f32_to_f16(value);
}

}  // namespace emulated

// D = A^T B, columns one after the other.
inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDescOpaque_t* product, const void*,
                                     const void* a, cublasLtMatrixLayoutOpaque_t* a_layout, const void* b,
                                     cublasLtMatrixLayoutOpaque_t* b_layout, const void*, const void*,
                                     cublasLtMatrixLayoutOpaque_t*, void* d,
                                     cublasLtMatrixLayoutOpaque_t* d_layout, const cublasLtMatmulAlgo_t* way,
                                     void*, std::size_t, cudaStream_t stream) {
    if (product->a != CUBLAS_OP_T || a_layout->rows != b_layout->rows || d_layout->rows != a_layout->cols ||
        d_layout->cols != b_layout->cols || way->a != *a_layout || way->b != *b_layout || way->c != *d_layout)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    ++emulated::device().blas_products;
    emulated::enqueue(stream, [a, b, d, al = *a_layout, bl = *b_layout, dl = *d_layout] {
        for (std::size_t column = 0; column < dl.cols; ++column)
            for (std::size_t row = 0; row < dl.rows; ++row) {
                float sum = 0;
                for (std::size_t k = 0; k < al.rows; ++k)
                    sum += emulated::number_at(a, al.type, row * static_cast<std::size_t>(al.ld) + k) *
                           emulated::number_at(b, bl.type, column * static_cast<std::size_t>(bl.ld) + k);
                emulated::put_number(sum, d, dl.type, column * static_cast<std::size_t>(dl.ld) + row);
            }
    });
    return CUBLAS_STATUS_SUCCESS;
}
