// Panels of weights that are quantised integers (codes) times scales.
#pragma once

#include <tiffin/cpu/simd/integer_dot.hpp>
#include <tiffin/cpu/simd/integer_row.hpp>
#include <tiffin/cpu/simd/unit.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

TIFFIN_BEGIN

namespace simd_detail {

// A unit: one block of the format for all outputs of a panel. Their f16 scales (then their minima); then per 32
// inputs
//   where scales have factors: those of the parts, one byte each (then those of the minima),
//   the codes (levels), high bits before low ones: the bytes of a group of inputs, output by output, group by group.
// A byte holds all 8 bits of input i, or the four low bits of inputs i and i + 16; the high bits of as many groups as
// fit share a byte.
template <class Arch, quantised_format Weights, std::size_t Registers,
          class Dot = integer_dot<Arch, Weights::level_bits>>
struct integer_panel {
    using dot = Dot;
    using storage = typename Weights::storage;
    using reg = lanes<Arch>;
    using whole = int_lanes<Arch>;
    static constexpr std::size_t numbers = Registers * width<Arch>;
    static constexpr std::size_t piece = q8_0::block;              // inputs with one scale of the activations
    static constexpr std::size_t parts = piece / Weights::part;    // of a piece, each with a factor
    static constexpr std::size_t pieces = Weights::block / piece;  // of a unit
    static constexpr std::size_t kinds = Weights::scales({}).size();
    static constexpr bool has_least = kinds == 2;
    static constexpr bool has_factors = pieces > 1;
    static constexpr int high_bits = Weights::level_bits == 8 ? 0 : Weights::level_bits - 4;
    static constexpr std::size_t low_bytes = Weights::level_bits == 8 ? 32 : 16;  // of an output's piece
    static constexpr std::size_t halves = piece / low_bytes;
    static constexpr std::size_t groups = low_bytes / dot::group;  // of a half
    static constexpr std::size_t factor_bytes = has_factors ? kinds * parts * numbers : 0;
    static constexpr std::size_t high_bytes = 4 * static_cast<std::size_t>(high_bits) * numbers;
    static constexpr std::size_t piece_bytes = factor_bytes + high_bytes + numbers * low_bytes;
    static constexpr std::size_t head_bytes = kinds * sizeof(std::uint16_t) * numbers;
    static constexpr std::size_t unit_bytes = head_bytes + pieces * piece_bytes;
    // By how much a code in the dot exceeds the integer that it represents, where there is no minimum.
    static constexpr int bias = Weights::level_bits == 8 ? dot::stored_bias : Weights::zero;
    using row = integer_row<typename dot::input, Weights::part, bias, has_least>;
    static_assert(parts == 1 || (parts == halves && has_factors && !has_least));
    static_assert(!has_factors || Weights::block == depth_block);

    static void put(const storage& block, std::size_t column, std::byte* to) noexcept {
        put_scales<Weights, numbers>(block, column, to);
        to += head_bytes;
        for (std::size_t p = 0; p < pieces; ++p, to += piece_bytes) {
            if constexpr (has_factors)
                for (std::size_t i = 0; i < kinds * parts; ++i)
                    to[i * numbers + column] =
                        static_cast<std::byte>(Weights::factor(block, i / parts, p * parts + i % parts));
            std::array<std::uint8_t, piece> levels;
            Weights::levels(block, p, levels.data());
            put_levels(levels, column, to + factor_bytes);
        }
    }

    // Calls visit(panel, weights) for each group of inputs of a part of piece b, for each of Panels panels.
    template <std::size_t Panels, std::size_t Part, class Visit>
    [[gnu::always_inline]] static void each(const std::byte* from, std::size_t b, std::size_t apart,
                                            const Visit& visit) noexcept {
        from = piece_at(from, b) + factor_bytes;
        const auto group = [&]<std::size_t Group>(std::integral_constant<std::size_t, Group>)
            __attribute__((always_inline)) {
            TIFFIN_UNROLL(8)
            for (std::size_t p = 0; p < Panels; ++p) {
                typename dot::weights weights[Registers];
                TIFFIN_UNROLL(24)
                for (std::size_t r = 0; r < Registers; ++r)
                    weights[r] = load<Group>(from + p * apart, r * width<Arch>);
                visit(p, weights);
            }
        };
        [&]<std::size_t... G>(std::index_sequence<G...>) __attribute__((always_inline)) {
            (group(std::integral_constant<std::size_t, Part * groups + G>{}), ...);
        }
        (std::make_index_sequence<halves / parts * groups>{});
    }
    // With two parts: the integer factor of a part's sums; the parts then share a scale.
    static whole factor(const std::byte* from, std::size_t b, std::size_t part, std::size_t r) noexcept
        requires(parts == 2) {
        return xsimd::to_int(factor_of(from, b, part, r));
    }
    // The scales of the outputs of register r in piece b; exact, as a factor has 8 bits.
    static reg scale(const std::byte* from, std::size_t b, std::size_t r) noexcept {
        return scale_of<0>(from, b, r);
    }
    static reg least(const std::byte* from, std::size_t b, std::size_t r) noexcept requires has_least {
        return scale_of<1>(from, b, r);
    }

private:
    // Groups whose high bits share a byte.
    static constexpr std::size_t fields =
        high_bits == 0 ? 1 : static_cast<std::size_t>(8 / (high_bits + !high_bits));

    static const std::byte* piece_at(const std::byte* from, std::size_t b) noexcept {
        return from + b / pieces * unit_bytes + head_bytes + b % pieces * piece_bytes;
    }
    // The offset of an output's bytes of group g.
    static constexpr std::size_t place(std::size_t g, std::size_t column) noexcept {
        return (g * numbers + column) * dot::group;
    }
    // Stores the codes of one output, the bytes of a group adjacent.
    static void put_levels(const std::array<std::uint8_t, piece>& levels, std::size_t column,
                           std::byte* to) noexcept {
        constexpr std::uint32_t ones = 0x01010101;
        const auto group = [&](std::size_t g) {
            std::uint32_t bytes = 0;
            std::memcpy(&bytes, levels.data() + g * dot::group, dot::group);
            return bytes;
        };
        if constexpr (high_bits > 0) {
            constexpr std::uint32_t mask = ones * ((1 << high_bits) - 1);
            for (std::size_t g = 0; g < piece / dot::group; g += fields) {
                std::uint32_t high = 0;
                for (std::size_t f = 0; f < fields; ++f) high |= (group(g + f) >> 4 & mask) << f * high_bits;
                std::memcpy(to + place(g / fields, column), &high, dot::group);
            }
        }
        for (std::size_t g = 0; g < groups; ++g) {
            const std::uint32_t low = halves == 1
                                          ? group(g) ^ ones * dot::stored_bias
                                          : (group(g) & ones * 15) | (group(g + groups) & ones * 15) << 4;
            std::memcpy(to + high_bytes + place(g, column), &low, dot::group);
        }
    }
    template <std::size_t Group>
    [[gnu::always_inline]] static typename dot::weights load(const std::byte* from,
                                                             std::size_t column) noexcept {
        const auto low =
            dot::template load<Group / groups>(from + high_bytes + place(Group % groups, column));
        if constexpr (high_bits == 0) {
            return low;
        } else {
            constexpr int shift = 4 - static_cast<int>(Group % fields) * high_bits;
            constexpr int mask = ((1 << high_bits) - 1) << 4;
            return dot::template join<shift, mask>(low, from + place(Group / fields, column));
        }
    }
    static reg factor_of(const std::byte* from, std::size_t b, std::size_t i, std::size_t r) noexcept {
        return widen<Arch>(reinterpret_cast<const std::int8_t*>(piece_at(from, b)) + i * numbers +
                           r * width<Arch>);
    }
    template <std::size_t Kind>
    static reg scale_of(const std::byte* from, std::size_t b, std::size_t r) noexcept {
        const reg scale = panel_scale<Arch, numbers, Kind>(from + b / pieces * unit_bytes, r);
        if constexpr (has_factors && parts == 1)
            return scale * factor_of(from, b, Kind, r);
        else
            return scale;
    }
};

// The same, unpacked once for many tiles.
template <class Arch, quantised_format Weights, std::size_t Registers>
struct unpacked_integer_panel {
    using packed = integer_panel<Arch, Weights, Registers>;
    using dot = typename packed::dot;
    using row = typename packed::row;
    using reg = lanes<Arch>;
    using whole = int_lanes<Arch>;
    using group = typename dot::weights[Registers];
    static constexpr std::size_t parts = packed::parts;
    static constexpr bool has_least = packed::has_least;
    static constexpr std::size_t groups = packed::halves / parts * packed::groups;  // of a part
    struct block {
        reg scales[packed::kinds][Registers];
        whole factors[parts][Registers];  // only with two parts
        group weights[parts * groups];
    };

    static void unpack(const std::byte* from, std::size_t depth, std::byte* to) noexcept {
        auto* at = reinterpret_cast<block*>(to);
        for (std::size_t b = 0; b < depth / packed::piece; ++b, ++at) {
            TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r) {
                at->scales[0][r] = packed::scale(from, b, r);
                if constexpr (has_least) at->scales[1][r] = packed::least(from, b, r);
            }
            unpack_part<0>(from, b, *at);
            if constexpr (parts == 2) unpack_part<1>(from, b, *at);
        }
    }
    template <std::size_t Panels, std::size_t Part, class Visit>
        requires(Panels == 1)
    [[gnu::always_inline]] static void each(const std::byte* from, std::size_t b, std::size_t,
                                            const Visit& visit) noexcept {
        const group* const all = at(from, b).weights + Part * groups;
        TIFFIN_UNROLL(32)
        for (std::size_t g = 0; g < groups; ++g) {
            typename dot::weights weights[Registers];
            TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r) weights[r] = all[g][r];
            visit(std::size_t{0}, weights);
        }
    }
    static const std::byte* levels_at(const std::byte* from, std::size_t b, std::size_t part) noexcept {
        return reinterpret_cast<const std::byte*>(at(from, b).weights + part * groups);
    }
    static whole factor(const std::byte* from, std::size_t b, std::size_t part, std::size_t r) noexcept
        requires(parts == 2) {
        return at(from, b).factors[part][r];
    }
    static reg scale(const std::byte* from, std::size_t b, std::size_t r) noexcept {
        return at(from, b).scales[0][r];
    }
    static reg least(const std::byte* from, std::size_t b, std::size_t r) noexcept requires has_least {
        return at(from, b).scales[1][r];
    }

private:
    static const block& at(const std::byte* from, std::size_t b) noexcept {
        return reinterpret_cast<const block*>(from)[b];
    }
    template <std::size_t Part>
    static void unpack_part(const std::byte* from, std::size_t b, block& to) noexcept {
        if constexpr (parts == 2) {
            TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r)
                to.factors[Part][r] = packed::factor(from, b, Part, r);
        }
        group* next = to.weights + Part * groups;
        packed::template each<1, Part>(
            from, b, 0,
            [&](std::size_t, const typename dot::weights(&weights)[Registers])
                __attribute__((always_inline)) {
                    TIFFIN_UNROLL(24)
                    for (std::size_t r = 0; r < Registers; ++r) (*next)[r] = weights[r];
                    ++next;
                });
    }
};

}  // namespace simd_detail

TIFFIN_END
