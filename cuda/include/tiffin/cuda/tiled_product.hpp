// Grouped products, whose number of rows per expert is known on the device only.
#pragma once

#include <tiffin/cuda/call.hpp>
#include <tiffin/cuda/kernels.hpp>
#include <tiffin/cuda/numbers.hpp>
#include <tiffin/format/concepts.hpp>

#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace cuda_detail {

// out(i, j) = sum over k of x(i)[k] W_e[j][k] for the rows i from starts[e] to starts[e + 1], for every expert e.
// Without starts: for the rows below `all`, of one expert.
// Rows: i -> pointer to row i; Out: called with (i, j, sum).
// Numerics: f32; k ascending in each of the `parts` that its range is split into, one where there are 64 columns.
// Cost: a tile of 64 rows and `columns` outputs per block, from shared memory; the next slice of k is read while one is
//   multiplied.
template <codec Format, class Rows, class Out, unsigned Columns = 64>
struct tiled_product {
    static constexpr unsigned side = 64, columns = Columns, each = 4;
    static constexpr unsigned threads = side / each * (columns / each);  // of one part of k
    static constexpr unsigned parts = block_threads / threads;
    static constexpr unsigned depth = parts == 1 ? 32 : 64;  // of a slice
    static_assert(parts * threads == block_threads && depth % parts == 0);

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

// A thread's share of a slice of Lines rows, Depth elements each, in registers on the way to shared memory.
template <codec Format, unsigned Lines, unsigned Depth>
struct slice {
    static constexpr unsigned numbers = access<Format>, items = Lines * (Depth / numbers);
    static constexpr unsigned own = (items + block_threads - 1) / block_threads;

    pack<numbers> held[own];

    // row(line): pointer to the row, or null.
    template <class Row>
    __device__ void read(const Row& row, std::size_t k, std::size_t inputs) {
        for (unsigned i = 0; i < own; ++i) {
            const unsigned item = i * block_threads + threadIdx.x;
            const std::size_t at = k + item / Lines * numbers;
            const auto* const from = item < items && at < inputs ? row(item % Lines) : nullptr;
            held[i] = from != nullptr ? load<Format, numbers>(from + at, inputs - at) : pack<numbers>(0.0f);
        }
    }
    __device__ void write(float (*to)[Lines]) const {
        for (unsigned i = 0; i < own; ++i) {
            const unsigned item = i * block_threads + threadIdx.x;
            if (item >= items) return;
            for (unsigned n = 0; n < numbers; ++n)
                to[item / Lines * numbers + n][item % Lines] = held[i].lane[n];
        }
    }
};

template <codec Format, class Rows, class Out, unsigned Columns>
__global__ void __launch_bounds__(block_threads)
    tiled_kernel(const tiled_product<Format, Rows, Out, Columns> p) {
    using product = tiled_product<Format, Rows, Out, Columns>;
    constexpr unsigned side = product::side, depth = product::depth, each = product::each,
                       parts = product::parts;
    alignas(16) __shared__ float x[depth][side];
    alignas(16) __shared__ float w[depth][Columns];
    const std::size_t across = (p.outputs + Columns - 1) / Columns;
    const std::size_t column = blockIdx.x % across * Columns;
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
    const auto row_of_x = [&](unsigned line) { return first + line < last ? p.rows(first + line) : nullptr; };
    const auto row_of_w = [&](unsigned line) {
        return column + line < p.outputs ? weights + (column + line) * p.inputs : nullptr;
    };
    const unsigned part = threadIdx.x / product::threads, place = threadIdx.x % product::threads;
    const unsigned down = place / (Columns / each) * each, right = place % (Columns / each) * each;
    float sums[each][each] = {};
    slice<Format, side, depth> next_x;
    slice<Format, Columns, depth> next_w;
    next_x.read(row_of_x, 0, p.inputs);
    next_w.read(row_of_w, 0, p.inputs);
    for (std::size_t k = 0; k < p.inputs; k += depth) {
        next_x.write(x);
        next_w.write(w);
        __syncthreads();
        next_x.read(row_of_x, k + depth, p.inputs);
        next_w.read(row_of_w, k + depth, p.inputs);
        for (unsigned at = part * (depth / parts); at < (part + 1) * (depth / parts); ++at) {
            const pack<each> xs = load<f32, each>(&x[at][down], each),
                             ws = load<f32, each>(&w[at][right], each);
            for (unsigned a = 0; a < each; ++a)
                for (unsigned b = 0; b < each; ++b) sums[a][b] += xs.lane[a] * ws.lane[b];
        }
        __syncthreads();
    }
    // Adds the parts' sums in order, in the shared memory of x.
    if constexpr (parts > 1) {
        static_assert(side * Columns <= side * depth);
        float* const total = &x[0][0];
        for (unsigned now = 0; now < parts; ++now) {
            for (unsigned i = 0; i < each * each && part == now; ++i) {
                float& sum = total[(down + i / each) * Columns + right + i % each];
                sum = sums[i / each][i % each] += now == 0 ? 0.0f : sum;
            }
            __syncthreads();
        }
        if (part + 1 < parts) return;
    }
    for (unsigned a = 0; a < each; ++a)
        for (unsigned b = 0; b < each; ++b)
            if (first + down + a < last && column + right + b < p.outputs)
                p.out(first + down + a, column + right + b, sums[a][b]);
}

// `most`: upper bound of the number of rows.
template <codec Format, class Rows, class Out, unsigned Columns>
void multiply(launches& out, std::size_t most, const tiled_product<Format, Rows, Out, Columns>& product) {
    constexpr std::size_t side = tiled_product<Format, Rows, Out, Columns>::side;
    const std::size_t across = (product.outputs + Columns - 1) / Columns;
    out.kernel((most / side + product.experts) * across, block_threads,
               tiled_kernel<Format, Rows, Out, Columns>, product);
}

// Contiguous rows, and the destination of their products.
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
