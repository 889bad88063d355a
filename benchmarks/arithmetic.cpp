#include "arithmetic.hpp"

#include <tiffin/cpu/simd/amx.hpp>
#include <tiffin/cpu/simd/amx_permission.hpp>
#include <tiffin/cpu/simd/integer_dot.hpp>
#include <tiffin/cpu/simd/lanes.hpp>

#include <xsimd/xsimd.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <utility>

namespace tiffin_bench {
namespace {

namespace registers = tiffin::simd_detail;
using arch = xsimd::default_arch;
using lanes = registers::lanes<arch>;

// One instruction, or the few that stand for it: `add` does `operations` in a register.
struct f32_chain {
    using sums = lanes;
    static constexpr double operations = 2 * registers::width<arch>;
    static sums all(std::int32_t) noexcept { return sums(0.5f); }
    // Converges to 1, far from the subnormals.
    static void add(sums& to, sums& a, const sums& b) noexcept {
        to = registers::multiply_add<arch>(to, a, b);
        registers::pin(to.data);
    }
    static void hide(sums& v) noexcept { registers::pin(v.data); }
};

#if defined(__AVX512BF16__)
struct bf16_chain {
    using sums = __m512;
    static constexpr double operations = 4 * 16;
    static sums all(std::int32_t) noexcept { return _mm512_castsi512_ps(_mm512_set1_epi16(0x3f80)); }
    static void add(sums& to, sums& a, const sums& b) noexcept {
        to = _mm512_dpbf16_ps(to, std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
        registers::pin(to);
    }
    static void hide(sums& v) noexcept { registers::pin(v); }
};
#else
using bf16_chain = f32_chain;
#endif

#if defined(__AVX2__)
#    if defined(__AVX512BW__)
using bytes = registers::bytes_512;
#    else
using bytes = registers::bytes_256;
#    endif
struct int8_chain {
    using sums = bytes::reg;
    static constexpr double operations = 2 * sizeof(sums);
    static sums all(std::int32_t v) noexcept { return bytes::all(v); }
    static void add(sums& to, sums& a, const sums& b) noexcept { add_with<bytes>(to, a, b); }
    static void hide(sums& v) noexcept { registers::pin(v); }

private:
    template <class Bytes>
    static void add_with(sums& to, sums& a, const sums& b) noexcept {
        if constexpr (requires { Bytes::fours(to, a, b); }) {
            to = Bytes::fours(to, a, b);
        } else {
            registers::pin(a);  // so that the product, which is the same each time, is not computed once
            to = Bytes::add_16(to, Bytes::pairs_of_8(a, b));
        }
        registers::pin(to);
    }
};
#elif defined(__ARM_FEATURE_DOTPROD)
struct int8_chain {
    using sums = int8x16_t;
    static constexpr double operations = 2 * sizeof(sums);
    static sums all(std::int32_t v) noexcept { return vdupq_n_s8(static_cast<std::int8_t>(v)); }
    static void add(sums& to, sums& a, const sums& b) noexcept {
        to = vreinterpretq_s8_s32(vdotq_s32(vreinterpretq_s32_s8(to), a, b));
        registers::pin(to);
    }
    static void hide(sums& v) noexcept { registers::pin(v); }
};
#else
using int8_chain = f32_chain;
#endif

// Enough chains to hide a latency of up to 6 cycles on 2 ports; no more than the registers hold along with two
// factors, as a spilled chain would measure the cache. AVX-512 and NEON have 32 registers, narrower x86 sets
// have 16.
#if (defined(__x86_64__) || defined(__i386__)) && !defined(__AVX512F__)
constexpr std::size_t chains = 12;
#else
constexpr std::size_t chains = 16;
#endif
constexpr std::size_t steps = std::size_t{1} << 17;

template <class Chain, std::size_t... I>
void run_chains(std::index_sequence<I...>) {
    using sums = typename Chain::sums;
    // Hidden from the compiler, so that nothing is computed at compile time.
    sums a = Chain::all(0), b = Chain::all(0);
    Chain::hide(a);
    Chain::hide(b);
    sums chain[] = {Chain::all(static_cast<std::int32_t>(I))...};
    for (std::size_t s = 0; s < steps; ++s) (Chain::add(chain[I], a, b), ...);
}

constexpr std::size_t amx_steps = std::size_t{1} << 12;

// Four products of tiles at a time, which hide the latency of one another. All numbers are 0.
template <arithmetic Kind>
struct amx_chains {
    static constexpr double operations =
        4.0 * 2 * 16 * 16 * (Kind == arithmetic::bf16_dot ? 32 : 64) * amx_steps;
    static void run() {
        static constexpr registers::amx_shapes shapes = [] {
            registers::amx_shapes made;
            for (std::size_t i = 0; i < 6; ++i) made.set(i, registers::amx_rows, registers::amx_row_bytes);
            return made;
        }();
        const registers::amx_scope scope(shapes);  // which makes them zeros
        registers::amx_unit unit(shapes);
        const auto step = [&]<std::size_t... C>(std::index_sequence<C...>) {
            if constexpr (Kind == arithmetic::bf16_dot)
                (unit.template multiply_bf16<C, 4, 5>(), ...);
            else
                (unit.template multiply_bytes<C, 4, 5>(), ...);
        };
        for (std::size_t s = 0; s < amx_steps; ++s) step(std::make_index_sequence<4>{});
    }
};

template <class Chain>
struct register_chains {
    static constexpr double operations = Chain::operations * chains * steps;
    static void run() { run_chains<Chain>(std::make_index_sequence<chains>{}); }
};

// Each thread by its own clock: one that has to wait for a core is not slower once it has it.
template <class Chains>
double operations_per_second(int threads) {
    using clock = std::chrono::steady_clock;
    double rate = 0;
#pragma omp parallel num_threads(threads) reduction(+ : rate)
    {
        const clock::time_point start = clock::now();
        Chains::run();
        const std::chrono::duration<double> took = clock::now() - start;
        rate = Chains::operations / took.count();
    }
    return rate;
}

}  // namespace

double measure_operations_per_second(arithmetic kind, int threads) {
    const bool amx = tiffin::amx_permitted();
    switch (kind) {
        case arithmetic::bf16_dot:
            return amx ? operations_per_second<amx_chains<arithmetic::bf16_dot>>(threads)
                       : operations_per_second<register_chains<bf16_chain>>(threads);
        case arithmetic::int8_dot:
            return amx ? operations_per_second<amx_chains<arithmetic::int8_dot>>(threads)
                       : operations_per_second<register_chains<int8_chain>>(threads);
        default: return operations_per_second<register_chains<f32_chain>>(threads);
    }
}

}  // namespace tiffin_bench
