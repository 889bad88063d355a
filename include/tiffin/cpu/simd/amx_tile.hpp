// Products of 16 tokens and a register of outputs at a time, in the tile registers of AMX.
#pragma once

#include <tiffin/cpu/simd/amx.hpp>
#include <tiffin/cpu/simd/bf16_tile.hpp>
#include <tiffin/cpu/simd/integer_tile.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace simd_detail {

// Calls visit(integral_constant<std::size_t, i>) for i from 0 to Count - 1.
template <std::size_t Count, class Visit>
[[gnu::always_inline]] inline void each_tile(const Visit& visit) noexcept {
    [&]<std::size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        (visit(std::integral_constant<std::size_t, I>{}), ...);
    }
    (std::make_index_sequence<Count>{});
}

// Tiles of bf16: `TokenTiles` tiles of tokens times a panel. C(t, r) is tile t * Registers + r; then follow the tiles
// of the tokens, then those of the weights.
template <class Arch, std::size_t Registers, std::size_t TokenTiles>
struct amx_bf16_tiles {
    static constexpr std::size_t tokens = TokenTiles * Registers, weights = tokens + TokenTiles;
    static_assert(weights + Registers <= 8);
    static constexpr amx_shapes shapes = [] {
        amx_shapes made;
        for (std::size_t i = 0; i < weights + Registers; ++i)
            made.set(i, amx_rows, i >= tokens && i < weights ? amx_row_bytes : width<Arch> * 4);
        return made;
    }();
};

// acc[token][register] (+)= sum over pairs k of x[token][k] w[k][register].
// Shapes: as multiply_bf16_tile's, the depth a multiple of 32; rows of x up to the end of a tile are read but not
//   used.
// Numerics: 32 inputs are summed apart, the even ones and the odd ones, then added to each other and to the
//   accumulator; steps of 32 ascend. Subnormals count as 0. A token's sums do not depend on its row.
// Cost: 16 cycles for each multiplication of tiles, 16 x 32 x 16 multiply-adds.
template <class Amx, class Arch, std::size_t Registers, std::size_t TokenTiles>
[[gnu::noinline]] void multiply_bf16_amx(std::size_t tokens, const std::byte* x, std::size_t depth,
                                         const std::byte* w, float* acc, bool fresh, ahead next) noexcept {
    using tiles = amx_bf16_tiles<Arch, Registers, TokenTiles>;
    constexpr std::size_t row_bytes = depth_block * sizeof(bf16::storage), pairs = amx_row_bytes / 4;
    constexpr std::size_t apart = Registers * width<Arch>;  // floats of acc from token to token, pairs of w
    // Sums of a partial tile go through this buffer, as acc continues with other sums.
    alignas(64) float part[amx_rows * apart];
    const std::size_t inside = tokens / amx_rows * amx_rows * apart, rest = tokens * apart - inside;
    const auto sums_at = [&](std::size_t t) {
        return (t + 1) * amx_rows <= tokens ? acc + t * amx_rows * apart : part;
    };
    if (!fresh && rest > 0) std::fill(std::copy_n(acc + inside, rest, part), std::end(part), 0.0f);
    Amx amx(tiles::shapes);
    each_tile<TokenTiles>([&](auto t) {
        each_tile<Registers>([&](auto r) {
            if (fresh)
                amx.template zero<t * Registers + r>();
            else
                amx.template load<t * Registers + r>(sums_at(t) + r * width<Arch>, apart * sizeof(float));
        });
    });
    for (std::size_t k = 0; k < depth; k += 2 * pairs, x += amx_row_bytes, w += pairs * apart * 4) {
        for (std::size_t i = 0; i < 2 * pairs; i += prefetch_every) next.prefetch();
        each_tile<TokenTiles>(
            [&](auto t) { amx.template load<tiles::tokens + t>(x + t * amx_rows * row_bytes, row_bytes); });
        each_tile<Registers>([&](auto r) {
            amx.template load<tiles::weights + r>(w + r * width<Arch> * 4, apart * 4);
            each_tile<TokenTiles>([&](auto t) {
                amx.template multiply_bf16<t * Registers + r, tiles::tokens + t, tiles::weights + r>();
            });
        });
    }
    each_tile<TokenTiles>([&](auto t) {
        each_tile<Registers>([&](auto r) {
            amx.template store<t * Registers + r>(sums_at(t) + r * width<Arch>, apart * sizeof(float));
        });
    });
    std::copy_n(part, rest, acc + inside);
}

// A panel's block as unpacked for tiles: signed bytes, without the bias that vector instructions have in them.
template <class Arch, quantised_format Weights, std::size_t Registers>
struct signed_integer_panel : unpacked_integer_panel<Arch, Weights, Registers> {
    using unpacked = unpacked_integer_panel<Arch, Weights, Registers>;
    static_assert(!unpacked::has_least || Weights::level_bits < 8);

    static void unpack(const std::byte* from, std::size_t depth, std::byte* to) noexcept {
        unpacked::unpack(from, depth, to);
        if constexpr (!unpacked::has_least && unpacked::packed::bias != 0)
            for (std::size_t b = 0; b < depth / q8_0::block; ++b) {
                auto& weights = reinterpret_cast<typename unpacked::block*>(to)[b].weights;
                auto* const bytes = reinterpret_cast<std::uint8_t*>(&weights);
                for (std::size_t i = 0; i < sizeof weights; ++i)
                    bytes[i] = static_cast<std::uint8_t>(bytes[i] - unpacked::packed::bias);
            }
    }
};

// Tiles of quantised integers: 0 the sums, 1 the tokens, 2 the weights of one part of a piece.
template <class Panel>
inline constexpr amx_shapes amx_integer_shapes = [] {
    constexpr std::size_t lanes = Panel::reg::size, depth = q8_0::block / Panel::parts;
    amx_shapes made;
    made.set(0, amx_rows, lanes * 4);
    made.set(1, amx_rows, depth);
    made.set(2, depth / 4, lanes * 4);
    return made;
}();

// multiply_integer_tile of one panel, to the bit, for 16 tokens if `Whole`, else for fewer.
// Shapes: rows of x up to the 16th are read, those after the last token are not used.
// Cost: per piece and register one multiplication of tiles per part, 16 cycles; its sums go through memory, as
//   tiles cannot be scaled: three vector instructions per token (conversion, scale of x, scale of w and addition),
//   24 cycles of two ports for 16 tokens.
template <class Amx, class Panel, std::size_t Registers, bool Whole>
[[gnu::noinline]] void multiply_integer_amx(std::size_t tokens, const std::byte* x, std::size_t depth,
                                            const std::byte* w, float* acc, bool fresh, ahead next) noexcept {
    using reg = typename Panel::reg;
    using whole = typename Panel::whole;
    const auto* const rows = reinterpret_cast<const typename Panel::row*>(x);
    // A constant for a whole tile, so that the sums stay in registers; else the remainder gives the compiler the
    // bound.
    const std::size_t count = Whole ? amx_rows : tokens % amx_rows;
    Amx amx(amx_integer_shapes<Panel>);
    alignas(64) std::int32_t products[Panel::parts][amx_rows][reg::size];
    for (std::size_t r = 0; r < Registers; ++r) {
        reg sums[amx_rows];
        TIFFIN_UNROLL(16)
        for (std::size_t t = 0; t < count; ++t)
            sums[t] = fresh ? reg(0.0f) : reg::load_aligned(acc + (t * Registers + r) * reg::size);
        for (std::size_t b = 0; b < depth / q8_0::block; ++b) {
            for (std::size_t i = 0; r == 0 && i < q8_0::block; i += prefetch_every) next.prefetch();
            each_tile<Panel::parts>([&](auto p) {
                amx.template zero<0>();
                amx.template load<1>(rows->values + (b * Panel::parts + p) * (q8_0::block / Panel::parts),
                                     sizeof *rows);
                amx.template load<2>(Panel::levels_at(w, b, p) + r * sizeof(reg), Registers * sizeof(reg));
                amx.template multiply_bytes<0, 1, 2>();
                amx.template store<0>(products[p], sizeof(reg));
            });
            TIFFIN_UNROLL(16)
            for (std::size_t t = 0; t < count; ++t) {
                const auto part = [&](std::size_t p) {
                    return xsimd::to_float(whole::load_aligned(products[p][t]));
                };
                reg total = part(0);
                // Whole numbers below 2^24: exact.
                if constexpr (Panel::parts == 2)
                    total = multiply_add<typename reg::arch_type>(
                        part(1), xsimd::to_float(Panel::factor(w, b, 1, r)),
                        total * xsimd::to_float(Panel::factor(w, b, 0, r)));
                sums[t] = add_scaled<Panel>(sums[t], total, rows[t], w, b, r);
            }
        }
        TIFFIN_UNROLL(16)
        for (std::size_t t = 0; t < count; ++t) sums[t].store_aligned(acc + (t * Registers + r) * reg::size);
    }
}

}  // namespace simd_detail

TIFFIN_END
