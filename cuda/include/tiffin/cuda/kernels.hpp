// Kernel launches with one thread per element, one warp per item or one block per row.
#pragma once

#include <tiffin/cuda/runtime.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace cuda_detail {

inline constexpr unsigned warp_threads = 32;
inline constexpr unsigned block_threads = 256;

// The threads of one warp; sum() returns the sum over them to all of them.
struct warp {
    __device__ unsigned rank() const { return threadIdx.x % warp_threads; }
    static constexpr unsigned size() { return warp_threads; }
    __device__ float sum(float value) const {
        for (unsigned step = warp_threads / 2; step > 0; step /= 2)
            value += __shfl_xor_sync(0xFFFFFFFFu, value, static_cast<int>(step));
        return value;
    }
};

// The threads of one block; `partial`: in shared memory, a float per warp.
struct block {
    float* partial;

    __device__ unsigned rank() const { return threadIdx.x; }
    static constexpr unsigned size() { return block_threads; }
    __device__ float sum(float value) const {
        const float mine = warp{}.sum(value);
        if (threadIdx.x % warp_threads == 0) partial[threadIdx.x / warp_threads] = mine;
        __syncthreads();
        float total = 0;
        for (unsigned i = 0; i < block_threads / warp_threads; ++i) total += partial[i];
        __syncthreads();  // before any thread begins the next sum
        return total;
    }
};

template <class Body>
__global__ void __launch_bounds__(block_threads) element_kernel(const Body body, const std::size_t items) {
    const std::size_t i = std::size_t{blockIdx.x} * block_threads + threadIdx.x;
    if (i < items) body(i);
}
template <class Body>
__global__ void __launch_bounds__(block_threads) warp_kernel(const Body body, const std::size_t items) {
    const std::size_t i = (std::size_t{blockIdx.x} * block_threads + threadIdx.x) / warp_threads;
    if (i < items) body(warp{}, i);
}
template <class Body>
__global__ void __launch_bounds__(block_threads) row_kernel(const Body body) {
    __shared__ float partial[block_threads / warp_threads];
    body(block{partial}, std::size_t{blockIdx.x});
}

// Calls body(i) for i below `items`, one thread each.
template <class Body>
void for_elements(launches& out, std::size_t items, const Body& body) {
    out.kernel((items + block_threads - 1) / block_threads, block_threads, element_kernel<Body>, body, items);
}
// Calls body(warp, i), the 32 threads of a warp together.
template <class Body>
void for_warps(launches& out, std::size_t items, const Body& body) {
    constexpr std::size_t warps = block_threads / warp_threads;
    out.kernel((items + warps - 1) / warps, block_threads, warp_kernel<Body>, body, items);
}
// Calls body(block, i), the threads of a block together.
template <class Body>
void for_rows(launches& out, std::size_t rows, const Body& body) {
    out.kernel(rows, block_threads, row_kernel<Body>, body);
}

}  // namespace cuda_detail

TIFFIN_END
