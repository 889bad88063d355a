// OpenBLAS. It is called with one thread from each OpenMP thread, which computes its share of the
// outputs. On 2 cores with AVX-512 that took 0.75 of the time of OpenBLAS's own threads at 4 to 16
// tokens and the same from 64 tokens on, and it spares a second pool of threads that would wait,
// spinning, on the cores that the first one needs.
#include "../machine.hpp"
#include "../peers.hpp"

#include <cblas.h>
#include <omp.h>
#include <xsimd/xsimd.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

// Exported by builds that choose their kernels at run time, though in no header.
extern "C" {
[[gnu::weak]] void gotoblas_dynamic_init(void);
[[gnu::weak]] void gotoblas_dynamic_quit(void);
}

namespace tiffin_bench {
namespace {

bool core_is(const char* core) {
    return std::string(openblas_get_corename()) == core;
}

// An OpenBLAS older than the processor takes it for a Prescott of 2004 and does without AVX: release
// 0.3.21 does so with Xeons of 2023, at a fifth of the speed. A comparison with that would be worth
// nothing, so it is told what the processor can do. The variable is read when the kernels are
// chosen, which was before main() and is done once more here.
void choose_kernels() {
#if defined(__x86_64__)
    if (!core_is("Prescott") || !gotoblas_dynamic_init || !gotoblas_dynamic_quit) return;
    const auto choose = [](const char* core) {
        setenv("OPENBLAS_CORETYPE", core, 1);
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
        return core_is(core);
    };
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512cd");
    if (avx512 && __builtin_cpu_supports("avx512bf16") && choose("Cooperlake")) return;
    if (avx512 && choose("SkylakeX")) return;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) choose("Haswell");
#endif
}

blasint as_int(std::size_t n) {
    return static_cast<blasint>(n);
}

// gate[i] = silu(gate[i]) * up[i], with silu(v) = v / (1 + exp(-v)).
void gate_product(float* gate, const float* up, std::size_t count) {
    using vec = xsimd::batch<float>;
    std::size_t i = 0;
    for (; i + vec::size <= count; i += vec::size) {
        const vec g = vec::load_unaligned(gate + i);
        const vec u = vec::load_unaligned(up + i);
        (g / (vec(1.0f) + xsimd::exp(-g)) * u).store_unaligned(gate + i);
    }
    for (; i < count; ++i) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

// Columns `rows` of out (tokens, outputs) = in (tokens, width) w^T, with w (outputs, width).
void multiply(const float* w, row_range rows, std::size_t width, std::size_t outputs, const float* in,
              std::size_t tokens, float* out) {
    // The matrix product copies the weights into its own layout first, which few tokens do not
    // repay: vector products of cached rows took 0.5 of its time at 2 tokens, 0.9 at 8.
    constexpr std::size_t few = 8;
    if (tokens > few) {
        if (rows.count == 0) return;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, as_int(tokens), as_int(rows.count),
                    as_int(width), 1.0f, in, as_int(width), w + rows.begin * width, as_int(width), 0.0f,
                    out + rows.begin, as_int(outputs));
        return;
    }
    const std::size_t block = rows_kept_in_cache(width);
    const std::size_t end = rows.begin + rows.count;
    for (std::size_t r = rows.begin; r < end; r += block)
        for (std::size_t t = 0; t < tokens; ++t)
            cblas_sgemv(CblasRowMajor, CblasNoTrans, as_int(std::min(block, end - r)), as_int(width), 1.0f,
                        w + r * width, as_int(width), in + t * width, 1, 0.0f, out + t * outputs + r, 1);
}

class openblas_peer final : public dense_peer {
public:
    openblas_peer(dense_shape shape, int threads, dense_weights weights)
        : shape_(shape), threads_(threads), weights_(std::move(weights)) {
        choose_kernels();
        openblas_set_num_threads(1);
        prepare(1);
    }

    void prepare(std::size_t tokens) override {
        if (tokens <= capacity_) return;
        gate_ = page_floats(tokens * shape_.d_ff);
        up_ = page_floats(tokens * shape_.d_ff);
        capacity_ = tokens;
    }

    void run(std::size_t layer, const float* x, std::size_t tokens, float* y) override {
        prepare(tokens);
        const float* const gate = weights_.gate(layer);
        const float* const up = weights_.up(layer);
        const float* const down = weights_.down(layer);
        float* const g = gate_.data();
        float* const u = up_.data();
#pragma omp parallel num_threads(threads_)
        {
            const int me = omp_get_thread_num();
            const int all = omp_get_num_threads();
            const row_range rows = rows_of_thread(shape_.d_ff, me, all);
            multiply(gate, rows, shape_.d_model, shape_.d_ff, x, tokens, g);
            multiply(up, rows, shape_.d_model, shape_.d_ff, x, tokens, u);
            for (std::size_t t = 0; t < tokens; ++t) {
                const std::size_t at = t * shape_.d_ff + rows.begin;
                gate_product(g + at, u + at, rows.count);
            }
#pragma omp barrier
            multiply(down, rows_of_thread(shape_.d_model, me, all), shape_.d_ff, shape_.d_model, g, tokens,
                     y);
        }
    }

private:
    dense_shape shape_;
    int threads_;
    dense_weights weights_;
    std::size_t capacity_ = 0;
    page_floats gate_;
    page_floats up_;
};

}  // namespace

dense_peer_kind openblas_peer_kind() {
    return {.library = "openblas",
            .format = "f32",
            .reads_in_place = true,
            .make = [](dense_shape shape, int threads, dense_weights weights) {
                return std::make_unique<openblas_peer>(shape, threads, std::move(weights));
            }};
}

}  // namespace tiffin_bench
