// The same block in other libraries: what a program would have without this one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace tiffin_bench {

// Where the weights of each layer lie, row-major with one row per output: gate and up are
// (d_ff, d_model), down is (d_model, d_ff). A peer asks anew whenever it packs, gets the same
// pointer each time, and may read the memory for as long as it lives.
struct dense_weights {
    std::function<const float*(std::size_t layer)> gate;
    std::function<const float*(std::size_t layer)> up;
    std::function<const float*(std::size_t layer)> down;
};

struct dense_shape {
    std::size_t d_model;
    std::size_t d_ff;
    std::size_t layers;
};

// A SwiGLU block computed by some library, as well as that library can:
//     y = (silu(x gate^T) * (x up^T)) down^T,    x and y (tokens, d_model), row-major
// A peer belongs to one thread at a time. It uses as many OpenMP threads as it was made with, and
// may leave that number set (omp_set_num_threads) for its caller.
struct dense_peer {
    dense_peer() = default;
    dense_peer(const dense_peer&) = delete;
    dense_peer& operator=(const dense_peer&) = delete;
    virtual ~dense_peer() = default;
    virtual const char* name() const = 0;
    // Allocates and packs what calls with this many tokens need. Not part of a measured time.
    virtual void prepare(std::size_t tokens) = 0;
    // Prepares first if the last preparation was for another number of tokens.
    virtual void run(std::size_t layer, const float* x, std::size_t tokens, float* y) = 0;
};

// Reads the given weights as they lie, so those should be page_floats (machine.hpp).
std::unique_ptr<dense_peer> make_eigen_peer(dense_shape shape, int threads, dense_weights weights);

// Reads the given weights as they lie, so those should be page_floats (machine.hpp). Sets OpenBLAS
// to one thread per call for the whole process: the threads are OpenMP's.
std::unique_ptr<dense_peer> make_openblas_peer(dense_shape shape, int threads, dense_weights weights);

// Holds one copy of all weights, in the layout oneDNN asks for, and reads the given ones only to
// pack: at construction and in a `prepare` for a token count with another layout.
std::unique_ptr<dense_peer> make_onednn_peer(dense_shape shape, int threads, dense_weights weights);

struct row_range {
    std::size_t begin;
    std::size_t count;
};

// The part of `rows` outputs that thread `index` of `threads` computes: whole vectors, but for the
// last.
inline row_range rows_of_thread(std::size_t rows, int index, int threads) {
    constexpr std::size_t grain = 16;
    const std::size_t grains = (rows + grain - 1) / grain;
    const auto i = static_cast<std::size_t>(index);
    const auto n = static_cast<std::size_t>(threads);
    const std::size_t begin = std::min(rows, grains * i / n * grain);
    return {begin, std::min(rows, grains * (i + 1) / n * grain) - begin};
}

// How many rows of `width` weights to multiply with one token after the other before going on, so
// that they come from memory once: they stay in half a megabyte, which second-level caches have.
inline std::size_t rows_kept_in_cache(std::size_t width) {
    constexpr std::size_t floats = (std::size_t{512} << 10) / sizeof(float);
    return std::max(std::size_t{8}, floats / width / 8 * 8);
}

// All peers of this build.
inline std::vector<std::function<std::unique_ptr<dense_peer>(dense_shape, int, dense_weights)>>
dense_peer_makers() {
    return {
        make_eigen_peer,
#if defined(TIFFIN_BENCH_OPENBLAS)
            make_openblas_peer,
#endif
#if defined(TIFFIN_BENCH_ONEDNN)
            make_onednn_peer,
#endif
    };
}

}  // namespace tiffin_bench
