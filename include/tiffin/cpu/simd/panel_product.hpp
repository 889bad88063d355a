// How panels of one number format are multiplied with activations of another.
#pragma once

#include <tiffin/cpu/simd/bf16_tile.hpp>
#include <tiffin/cpu/simd/integer_tile.hpp>
#include <tiffin/cpu/simd/tile.hpp>
#include <tiffin/cpu/simd/unit.hpp>
#include <tiffin/format/concepts.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <utility>

TIFFIN_BEGIN

namespace simd_detail {

// Packs the weights (outputs, inputs) of a panel, rounds rows of activations, multiplies them.
// A panel_product has
//   step         inputs are packed in multiples of this;
//   block_bytes  of one output's Weights::block inputs in a panel;
//   row_bytes    of a token's depth block of activations;
//   put(block, k, column, to)     stores a block of Weights, from input k on, in a panel;
//   round(from, first, count, row)   rounds inputs [first, first + count) of a depth block, the first of them at `from`
//                                 and in blocks of `rounded_block`; absent where activations stay f32;
//   tile_tokens, tile<Tokens, Panels>   the largest tile's tokens, a tile_function;
//   many_from    number of tokens from which many_tile<Tokens>, up to many_tile_tokens, replaces tile; or never;
//   unpack(panel, depth, to)      converts a block for many_tile, optional: no more bytes than depth_block inputs take
//                                 as f32. Costs a pass over the block in the cache; without it each tile repeats the
//                                 instructions;
//   many_rows    activation rows that many_tile reads together, whether they exist or not; optional;
//   around(work, i)   runs task i of `work` in the machine state that many_tile needs; optional.
inline constexpr std::size_t never = ~std::size_t{0};

// Activations that stay f32, or are rounded and widened again; weights are widened.
template <class Arch, stored_format Weights, codec Activations, std::size_t Registers>
struct panel_product {
    static constexpr std::size_t tile_tokens = most_accumulators / Registers;
    static constexpr std::size_t step = Weights::block;
    static constexpr std::size_t block_bytes = sizeof(typename Weights::storage);
    static constexpr std::size_t row_bytes = depth_block * sizeof(float);
    static constexpr std::size_t many_tile_tokens = tile_tokens;
    static constexpr std::size_t many_from = std::same_as<Weights, f32> ? never : 2 * tile_tokens + 1;

    static void put(const typename Weights::storage& block, std::size_t k, std::size_t column,
                    std::byte* to) noexcept {
        unit<Arch, Weights, Registers>::put(
            block, column, to + k / Weights::block * (Registers * width<Arch> * sizeof block));
    }
    static constexpr std::size_t rounded_block = Activations::block;
    static void round(const float* from, std::size_t first, std::size_t count, std::byte* row) noexcept
        requires(!std::same_as<Activations, f32>) {
        auto* const numbers = reinterpret_cast<float*>(row) + first;
        for (std::size_t k = 0; k < count; k += Activations::block) {
            if constexpr (requires { Activations::round(from, numbers); }) {
                Activations::round(from + k, numbers + k);
            } else {
                typename Activations::storage block;
                Activations::encode(from + k, block);
                Activations::decode(block, numbers + k);
            }
        }
    }
    template <std::size_t Tokens, std::size_t Panels>
    static constexpr tile_function tile = &multiply_tile<Arch, Weights, Registers, Tokens, Panels>;
    template <std::size_t Tokens>
    static constexpr tile_function many_tile = &multiply_tile<Arch, f32, Registers, Tokens, 1>;
    static void unpack(const std::byte* from, std::size_t depth, std::byte* to) noexcept {
        simd_detail::unpack<Arch, Weights, Registers>(from, depth, to);
    }
};

// Quantised integers: activations of 8 bits, weights of 4 to 8.
template <class Arch, quantised_format Weights, std::size_t Registers>
struct panel_product<Arch, Weights, q8_0, Registers> {
    using panel = integer_panel<Arch, Weights, Registers>;
    using unpacked_panel = unpacked_integer_panel<Arch, Weights, Registers>;
    // Few enough that the sums of a piece are scaled while the out-of-order core already multiplies the next (q8_0 on
    // a Zen 5 core: 329 G products per second with 24 sums, 390 with 12, of 403 that its ports allow).
    static constexpr std::size_t tile_tokens = 12 / Registers;
    static constexpr std::size_t step = Weights::block;
    static constexpr std::size_t block_bytes = panel::unit_bytes / panel::numbers;
    static constexpr std::size_t row_bytes = sizeof(typename panel::row);
    // Where one instruction adds a group of products, others can unpack codes at the same time: codes of 4 bits for
    // any number of tiles, of more bits for some. Factors are best multiplied into their scales once (on a Zen 5
    // core, G products per second, packed and unpacked: q4_0 at 32 tokens 332 and 314, q4_k at 12 228 and 260, at 4
    // 193 and 169; of a Zen 3, the time of 12 tokens over that of 6: q4_k 1.9 and 1.5, q5_k 2.0 and 1.5).
    static constexpr std::size_t many_tile_tokens = tile_tokens;
    static constexpr std::size_t many_from = panel::has_factors && panel::parts == 1 ? tile_tokens + 1
                                             : panel::dot::instructions > 1 || panel::parts == 2
                                                 ? 2 * tile_tokens + 1
                                             : panel::high_bits > 0 ? 7 * tile_tokens + 1
                                                                    : never;

    static void put(const typename Weights::storage& block, std::size_t k, std::size_t column,
                    std::byte* to) noexcept {
        panel::put(block, column, to + k / Weights::block * panel::unit_bytes);
    }
    static constexpr std::size_t rounded_block = q8_0::block;
    static void round(const float* from, std::size_t first, std::size_t count, std::byte* row) noexcept {
        round_to_integers<Arch, typename panel::row>(from, first, count, row);
    }
    template <std::size_t Tokens, std::size_t Panels>
    static constexpr tile_function tile = &multiply_integer_tile<panel, Registers, Tokens, Panels>;
    template <std::size_t Tokens>
    static constexpr tile_function many_tile = &multiply_integer_tile<unpacked_panel, Registers, Tokens, 1>;
    static void unpack(const std::byte* from, std::size_t depth, std::byte* to) noexcept {
        static_assert(sizeof(typename unpacked_panel::block) <=
                      panel::piece * panel::numbers * sizeof(float));
        unpacked_panel::unpack(from, depth, to);
    }
};

// Pairs of bf16.
template <class Arch, std::size_t Registers>
struct panel_product<Arch, bf16, bf16, Registers> {
    static constexpr std::size_t tile_tokens = most_accumulators / Registers;
    static constexpr std::size_t many_tile_tokens = tile_tokens;
    static constexpr std::size_t step = 2;
    static constexpr std::size_t block_bytes = sizeof(bf16::storage);
    static constexpr std::size_t row_bytes = depth_block * sizeof(bf16::storage);
    static constexpr std::size_t many_from = never;

    static void put(const bf16::storage& number, std::size_t k, std::size_t column, std::byte* to) noexcept {
        bf16_panel<Arch, Registers>::put(number, k, column, to);
    }
    static constexpr std::size_t rounded_block = step;
    static void round(const float* from, std::size_t first, std::size_t count, std::byte* row) noexcept {
        round_to_bf16<step>(from, first, count, row);
    }
    template <std::size_t Tokens, std::size_t Panels>
    static constexpr tile_function tile = &multiply_bf16_tile<Arch, Registers, Tokens, Panels>;
};

}  // namespace simd_detail

TIFFIN_END
