// The innermost product: a few tokens times one panel of packed weights, in registers.
#pragma once

#include <tiffin/backend/simd/unit.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace simd_detail {

// Inputs are taken in blocks of this many: a block of one panel (32 KiB at 2 registers of 16) stays
// in the first-level cache while the token tiles pass over it.
inline constexpr std::size_t depth_block = 256;

// Accumulators that fit into registers beside the weights and one broadcast input.
template <class Arch>
inline constexpr std::size_t accumulators = [] {
#if defined(__AVX512F__) || defined(__aarch64__)
    return std::size_t{24};
#else
    return std::size_t{12};
#endif
}();

// Tokens of a tile whose panels are `Registers` wide.
template <class Arch, std::size_t Registers>
inline constexpr std::size_t tile_tokens =
    accumulators<Arch> / Registers > 0 ? accumulators<Arch> / Registers : 1;

// Stored weights that a tile asks the cache for while it computes: the part of the next block that
// is this tile's to fetch, `lines` cache lines every `ask_every` inputs. In larger bursts the requests
// take the line buffers that the tile's own weights need: 8 inputs apart cost 7 % at 8 tokens.
inline constexpr std::size_t ask_every = 4;
struct ahead {
    const std::byte* from = nullptr;
    std::size_t lines = 0;

    [[gnu::always_inline]] void ask() noexcept {
        for (std::size_t i = 0; i < lines; ++i, from += 64) __builtin_prefetch(from, 0, 2);
    }
};

// acc[token][register] (+)= sum over k of x[token][k] w[k][register].
// Shapes: `rows` holds x of a depth block, depth_block floats a token; w is one packed block (depth,
//   Registers); acc (Tokens, Registers) registers in memory, read first unless `fresh`.
// Numerics: one fused multiply-add a term, k ascending, one accumulator an output; weights are widened
//   exactly. Neither the tile's size nor the passage of the accumulators through memory changes a bit.
template <class Arch, codec Format, std::size_t Registers, std::size_t Tokens>
void multiply_tile(const std::byte* rows, std::size_t depth, const std::byte* w, float* acc, bool fresh,
                   ahead next) noexcept {
    const auto* x = reinterpret_cast<const float*>(rows);
    using reg = lanes<Arch>;
    using stored = unit<Arch, Format, Registers>;
    constexpr std::size_t lane_count = width<Arch>;
    constexpr std::size_t unit_bytes = stored::numbers * sizeof(typename Format::storage);
    reg sums[Tokens][Registers];
    TIFFIN_UNROLL(24)
    for (std::size_t t = 0; t < Tokens; ++t) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r)
        sums[t][r] = fresh ? reg(0.0f) : reg::load_aligned(acc + (t * Registers + r) * lane_count);
    const auto step = [&](reg(&weight)[Registers]) __attribute__((always_inline)) {
        TIFFIN_UNROLL(24)
        for (std::size_t r = 0; r < Registers; ++r) pin(weight[r].data);
        TIFFIN_UNROLL(24)
        for (std::size_t t = 0; t < Tokens; ++t) {
            const reg input(x[t * depth_block]);
            TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r) {
                sums[t][r] = multiply_add<Arch>(input, weight[r], sums[t][r]);
                pin(sums[t][r].data);
            }
        }
        ++x;
    };
    std::size_t k = 0;
    if constexpr (Format::block == 1) {
        for (; k + ask_every <= depth; k += ask_every) {
            next.ask();
            TIFFIN_UNROLL(4)
            for (std::size_t u = 0; u < ask_every; ++u, w += unit_bytes) stored::each(w, step);
        }
        for (; k < depth; ++k, w += unit_bytes) stored::each(w, step);
    } else {
        for (; k < depth; k += Format::block, w += unit_bytes) {
            std::size_t inside = 0;
            stored::each(
                w, [&](reg(&weight)[Registers]) __attribute__((always_inline)) {
                    if (inside++ % ask_every == 0) next.ask();
                    step(weight);
                });
        }
    }
    TIFFIN_UNROLL(24)
    for (std::size_t t = 0; t < Tokens; ++t) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r)
        sums[t][r].store_aligned(acc + (t * Registers + r) * lane_count);
}

// Two panels next to each other, of a format without blocks, at once: with a few tokens a tile has too few
// sums to keep the multipliers busy, and waits longer for them than the memory takes for weights of 2 bytes.
// Sums are those of multiply_tile, to the bit; acc holds the first panel's, then the second's. Asks for
// nothing.
template <class Arch, codec Format, std::size_t Registers, std::size_t Tokens>
    requires(Format::block == 1)
void multiply_two_panels(const std::byte* rows, std::size_t depth, const std::byte* w, float* acc, bool fresh,
                         ahead) noexcept {
    using reg = lanes<Arch>;
    using stored = unit<Arch, Format, Registers>;
    constexpr std::size_t unit_bytes = stored::numbers * sizeof(typename Format::storage);
    const auto* x = reinterpret_cast<const float*>(rows);
    reg sums[2][Tokens][Registers];
    const auto for_sums = [&](const auto& visit) __attribute__((always_inline)) {
        float* at = acc;
        TIFFIN_UNROLL(2)
        for (std::size_t p = 0; p < 2; ++p) TIFFIN_UNROLL(24)
        for (std::size_t t = 0; t < Tokens; ++t) TIFFIN_UNROLL(24)
        for (std::size_t r = 0; r < Registers; ++r, at += width<Arch>) visit(sums[p][t][r], at);
    };
    for_sums([&](reg & sum, float* at)
                 __attribute__((always_inline)) { sum = fresh ? reg(0.0f) : reg::load_aligned(at); });
    for (std::size_t k = 0; k < depth; ++k, ++x, w += unit_bytes) TIFFIN_UNROLL(2)
    for (std::size_t p = 0; p < 2; ++p)
        stored::each(
            w + p * depth * unit_bytes, [&](reg(&weight)[Registers]) __attribute__((always_inline)) {
                TIFFIN_UNROLL(24)
                for (std::size_t t = 0; t < Tokens; ++t) TIFFIN_UNROLL(24)
                for (std::size_t r = 0; r < Registers; ++r) {
                    sums[p][t][r] = multiply_add<Arch>(reg(x[t * depth_block]), weight[r], sums[p][t][r]);
                    pin(sums[p][t][r].data);
                }
            });
    for_sums([](const reg& sum, float* at) __attribute__((always_inline)) { sum.store_aligned(at); });
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

using tile_function = void (*)(const std::byte*, std::size_t, const std::byte*, float*, bool, ahead) noexcept;

}  // namespace simd_detail

TIFFIN_END
