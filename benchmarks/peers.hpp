// The same block in other libraries: what a program would have without this one.
#pragma once

#include "arithmetic.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
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
    // Allocates and packs what calls with this many tokens need. Not part of a measured time.
    virtual void prepare(std::size_t tokens) = 0;
    // Prepares first if the last preparation was for another number of tokens.
    virtual void run(std::size_t layer, const float* x, std::size_t tokens, float* y) = 0;
};

// A library's block with weights in one of its number formats.
struct dense_peer_kind {
    std::string library;
    std::string format;
    arithmetic products = arithmetic::f32;
    double bytes_per_weight = sizeof(float);
    std::size_t multiple = 1;  // both sizes have to be multiples of it
    int weight_levels = 127;   // of s8: what the largest weight of a row becomes
    // Whether it reads the given weights as they lie in each call: those should then be page_floats
    // (machine.hpp). Others hold a copy of all, and read the given ones to pack: when they are made, and in a
    // `prepare` for a token count with another layout.
    bool reads_in_place = false;
    std::function<std::unique_ptr<dense_peer>(dense_shape, int threads, dense_weights)> make;
};

dense_peer_kind eigen_peer_kind();

// Sets OpenBLAS to one thread per call for the whole process, as it is made: the threads are OpenMP's.
dense_peer_kind openblas_peer_kind();

// f32, bf16 where oneDNN multiplies bf16 on this machine, s8.
std::vector<dense_peer_kind> onednn_peer_kinds();

// A graph of one block on ggml's CPU backend, in f32, bf16, f16 and blocks; `..._repacked`: in the layout that
// llama.cpp gives to weights of this format where it has one for the machine.
std::vector<dense_peer_kind> ggml_peer_kinds();

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
inline std::vector<dense_peer_kind> dense_peer_kinds() {
    std::vector<dense_peer_kind> kinds{eigen_peer_kind()};
    [[maybe_unused]] const auto add = [&](const std::vector<dense_peer_kind>& more) {
        kinds.insert(kinds.end(), more.begin(), more.end());
    };
#if defined(TIFFIN_BENCH_OPENBLAS)
    kinds.push_back(openblas_peer_kind());
#endif
#if defined(TIFFIN_BENCH_ONEDNN)
    add(onednn_peer_kinds());
#endif
#if defined(TIFFIN_BENCH_GGML)
    add(ggml_peer_kinds());
#endif
    return kinds;
}

}  // namespace tiffin_bench
