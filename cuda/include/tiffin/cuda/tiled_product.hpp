// Products of which the device alone knows how many rows there are, and which weights they meet.
#pragma once

#include <tiffin/cuda/call.hpp>
#include <tiffin/cuda/kernels.hpp>

#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace cuda_detail {

// out(i, j) = sum over k of x(i)[k] W_e[j][k] for the rows i from starts[e] to starts[e + 1], whatever e.
// Without starts: for the rows below `all`, of one expert.
// Rows: i -> the row's numbers; Out: (i, j, sum).
// Numerics: f32, k ascending. Cost: a tile of 64 rows and 64 outputs a block, from shared memory.
template <codec Format, class Rows, class Out>
struct tiled_product {
    static constexpr unsigned side = 64, depth = 16, each = 4;
    static_assert(side / each * (side / each) == block_threads);
    static_assert(side * depth == each * block_threads);

    const typename Format::storage* weights;  // (experts, outputs, inputs)
    std::size_t experts;
    std::size_t outputs;
    std::size_t inputs;
    const std::uint32_t* starts;
    std::size_t all;
    Rows rows;
    Out out;

    __device__ std::size_t start(std::size_t e) const {
        return starts != nullptr ? starts[e] : e == 0 ? 0 : all;
    }
};

template <codec Format, class Rows, class Out>
__global__ void __launch_bounds__(block_threads) tiled_kernel(const tiled_product<Format, Rows, Out> p) {
    using product = tiled_product<Format, Rows, Out>;
    constexpr unsigned side = product::side, depth = product::depth, each = product::each;
    __shared__ float x[depth][side + 1], w[depth][side + 1];
    const std::size_t across = (p.outputs + side - 1) / side;
    const std::size_t column = blockIdx.x % across * side;
    std::size_t tile = blockIdx.x / across;
    std::size_t e = 0;
    for (; e < p.experts; ++e) {
        const std::size_t tiles = (p.start(e + 1) - p.start(e) + side - 1) / side;
        if (tile < tiles) break;
        tile -= tiles;
    }
    if (e == p.experts) return;
    const std::size_t first = p.start(e) + tile * side, last = p.start(e + 1);
    const auto* const weights = p.weights + e * p.outputs * p.inputs;
    const unsigned down = threadIdx.x / (side / each) * each, right = threadIdx.x % (side / each) * each;
    float sums[each][each] = {};
    // A thread's numbers of each step, and where their rows begin.
    const unsigned step = threadIdx.x % depth;
    const typename Format::storage *of_x[each], *of_w[each];
    for (unsigned i = 0; i < each; ++i) {
        const unsigned line = i * side / each + threadIdx.x / depth;
        of_x[i] = first + line < last ? p.rows(first + line) : nullptr;
        of_w[i] = column + line < p.outputs ? weights + (column + line) * p.inputs : nullptr;
    }
    for (std::size_t k = 0; k < p.inputs; k += depth) {
        const bool inside = k + step < p.inputs;
        for (unsigned i = 0; i < each; ++i) {
            const unsigned line = i * side / each + threadIdx.x / depth;
            x[step][line] = inside && of_x[i] != nullptr ? widen<Format>(of_x[i][k + step]) : 0;
            w[step][line] = inside && of_w[i] != nullptr ? widen<Format>(of_w[i][k + step]) : 0;
        }
        __syncthreads();
        for (unsigned at = 0; at < depth; ++at)
            for (unsigned a = 0; a < each; ++a)
                for (unsigned b = 0; b < each; ++b) sums[a][b] += x[at][down + a] * w[at][right + b];
        __syncthreads();
    }
    for (unsigned a = 0; a < each; ++a)
        for (unsigned b = 0; b < each; ++b)
            if (first + down + a < last && column + right + b < p.outputs)
                p.out(first + down + a, column + right + b, sums[a][b]);
}

// `most`: the rows there can be.
template <codec Format, class Rows, class Out>
void multiply(launches& out, std::size_t most, const tiled_product<Format, Rows, Out>& product) {
    constexpr std::size_t side = tiled_product<Format, Rows, Out>::side;
    const std::size_t across = (product.outputs + side - 1) / side;
    out.kernel((most / side + product.experts) * across, block_threads, tiled_kernel<Format, Rows, Out>,
               product);
}

// Rows one after the other, and where their products go.
template <codec Format>
struct rows_in_order {
    activations<Format> in;

    __device__ const typename Format::storage* operator()(std::size_t i) const {
        return in.data + i * in.stride;
    }
};
template <codec Format>
struct into_plane {
    typename Format::storage* data;
    std::size_t stride;

    __device__ void operator()(std::size_t i, std::size_t j, float sum) const {
        Format::encode(&sum, data[i * stride + j]);
    }
};

}  // namespace cuda_detail

TIFFIN_END
