// The innermost product: a few tokens times one panel of packed weights, in registers.
#pragma once

#include <tiffin/cpu/simd/unit.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/format/f32.hpp>

#include <concepts>
#include <cstddef>

TIFFIN_BEGIN

namespace simd_detail {

// Inputs are taken in blocks of this many: a block of one panel (32 KiB at 2 registers of 16) stays
// in the first-level cache while the token tiles pass over it.
inline constexpr std::size_t depth_block = 256;

// Accumulators that fit into registers beside the weights and one broadcast input.
inline constexpr std::size_t most_accumulators = [] {
#if defined(__AVX512F__) || defined(__aarch64__)
    return std::size_t{24};
#else
    return std::size_t{12};
#endif
}();
// Tokens that share one pass over a group of panels, by the bytes of a token's depth block: their rows and sums fit
// the second-level cache. Each pass unpacks the weights anew.
inline constexpr std::size_t token_block(std::size_t row_bytes) noexcept {
    return row_bytes <= 2 * depth_block ? 192 : 96;
}

// Stored weights that a tile prefetches while it computes: its share of the next block, `lines` cache lines every
// `prefetch_every` inputs. In larger bursts the requests take the line buffers that the tile's own weights need: 8
// inputs apart cost 7 % at 8 tokens.
inline constexpr std::size_t prefetch_every = 4;
struct ahead {
    const std::byte* from = nullptr;
    std::size_t lines = 0;

    [[gnu::always_inline]] void prefetch() noexcept {
        for (std::size_t i = 0; i < lines; ++i, from += 64) __builtin_prefetch(from, 0, 2);
    }
};

// Panels that few tokens are multiplied with at once, in formats of at least 8 bits per weight. Memory is read as
// that many sequential streams: the hardware prefetcher runs further ahead on several than on one, as it stops at
// page ends (1 token, q8_0: 27 GB/s from one stream, 34 from four on an AVX2 machine; 35 and 45 on an EPYC with
// AVX-512). With fewer bits one software-prefetched stream is better: several advance too slowly for the hardware
// prefetcher (q4_0: 38 GB/s and 25 on that EPYC, 28 and 16 with AVX2 on it).
inline constexpr std::size_t panels_at_once = 4;
// Most tokens for panels_at_once: memory is then slower than the arithmetic, so that sums may be spilled. More for
// f32 where a panel is short (Zen 3, AVX2, SwiGLU 2048x8192, 3 and 4 tokens: 9.1 ms from one stream, 6.3 and 7.6 from
// four; of bf16 4.6 and 6.8 at 4 tokens).
template <class Weights>
inline constexpr std::size_t few_tokens = std::same_as<Weights, f32>&& most_accumulators < 24 ? 4 : 2;

// acc[panel][token][register] (+)= sum over k of x[token][k] w[panel][k][register].
// Shapes: `rows` holds x of a depth block, depth_block floats per token; w is a packed block (depth,
//   Registers) of each panel, `apart` bytes from one to the next; acc (Panels, Tokens, Registers) registers
//   in memory, read first unless `fresh`.
// Numerics: one fused multiply-add per term, k ascending, one accumulator per output; weights are widened
//   exactly. Neither the tile's size nor the passage of the accumulators through memory changes a bit.
template <class Arch, codec Format, std::size_t Registers, std::size_t Tokens, std::size_t Panels>
void multiply_tile(const std::byte* rows, std::size_t depth, const std::byte* w, std::size_t apart,
                   float* acc, bool fresh, ahead next) noexcept {
    using reg = lanes<Arch>;
    using stored = unit<Arch, Format, Registers>;
    const auto* x = reinterpret_cast<const float*>(rows);
    reg sums[Panels * Tokens][Registers];
    TIFFIN_UNROLL(24)
    for (std::size_t i = 0; i < Panels * Tokens; ++i) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r)
        sums[i][r] = fresh ? reg(0.0f) : reg::load_aligned(acc + (i * Registers + r) * width<Arch>);
    // One block of inputs.
    const auto step = [&]() __attribute__((always_inline)) {
        TIFFIN_UNROLL(8)
        for (std::size_t p = 0; p < Panels; ++p) {
            const float* at = x;
            stored::each(
                w + p * apart, [&](reg(&weight)[Registers]) __attribute__((always_inline)) {
                    if (Format::block > 1 && p == 0 && static_cast<std::size_t>(at - x) % prefetch_every == 0)
                        next.prefetch();
                    TIFFIN_UNROLL(24)
                    for (std::size_t r = 0; Tokens > 1 && r < Registers; ++r) pin(weight[r].data);
                    TIFFIN_UNROLL(24)
                    for (std::size_t t = 0; t < Tokens; ++t) {
                        const reg input(at[t * depth_block]);
                        TIFFIN_UNROLL(24)
                        for (std::size_t r = 0; r < Registers; ++r) {
                            reg& sum = sums[p * Tokens + t][r];
                            sum = multiply_add<Arch>(input, weight[r], sum);
                            pin(sum.data);
                        }
                    }
                    ++at;
                });
        }
        x += Format::block;
        w += stored::numbers * sizeof(typename Format::storage);
    };
    std::size_t k = 0;
    if constexpr (Format::block == 1)
        for (; k + prefetch_every <= depth; k += prefetch_every) {
            next.prefetch();
            TIFFIN_UNROLL(4)
            for (std::size_t u = 0; u < prefetch_every; ++u) step();
        }
    for (; k < depth; k += Format::block) step();
    TIFFIN_UNROLL(24)
    for (std::size_t i = 0; i < Panels * Tokens; ++i) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r)
        sums[i][r].store_aligned(acc + (i * Registers + r) * width<Arch>);
}

// A packed block (depth, Registers) widened to f32.
template <class Arch, codec Format, std::size_t Registers>
void unpack(const std::byte* from, std::size_t depth, std::byte* to_bytes) noexcept {
    using stored = unit<Arch, Format, Registers>;
    auto* to = reinterpret_cast<float*>(to_bytes);
    for (std::size_t k = 0; k < depth; k += Format::block) {
        stored::each(
            from, [&](const lanes<Arch>(&weight)[Registers]) __attribute__((always_inline)) {
                TIFFIN_UNROLL(24)
                for (std::size_t r = 0; r < Registers; ++r, to += width<Arch>) weight[r].store_aligned(to);
            });
        from += stored::numbers * sizeof(typename Format::storage);
    }
}

using tile_function = void (*)(const std::byte*, std::size_t, const std::byte*, std::size_t, float*, bool,
                               ahead) noexcept;

}  // namespace simd_detail

TIFFIN_END
