// Activations rounded to q8_0 times panels of q8_0, q4_0 or q4_1: whole numbers are multiplied and added, the
// scales come in once per block.
#pragma once

#include <tiffin/cpu/simd/integer_dot.hpp>
#include <tiffin/cpu/simd/tile.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

TIFFIN_BEGIN

namespace simd_detail {

// A token's depth block of activations.
template <class Dot>
struct integer_row {
    static constexpr std::size_t blocks = depth_block / q8_0::block;

    typename Dot::input values[depth_block];
    float scales[blocks];
    float shifts[blocks];  // what the weights' bias adds, to be taken off: - scale * bias * sum of the values
};

// Rounds block `b` of a row's activations as q8_0::round does, to the bit. A NaN or an infinity makes the
// scale NaN. Not inlined: g++ 12 derives the places of values and scales from one another by arithmetic that
// its analysis of aliases does not follow, and then drops the stores.
template <class Arch, class Dot>
[[gnu::noinline]] void round_block(const float* from, integer_row<Dot>& row, std::size_t b) noexcept {
    using reg = lanes<Arch>;
    reg most(0.0f), zeros(0.0f);
    for (std::size_t i = 0; i < q8_0::block; i += width<Arch>) {
        const reg v = reg::load_unaligned(from + i);
        most = xsimd::max(most, xsimd::abs(v));
        zeros = multiply_add<Arch>(v, reg(0.0f), zeros);
    }
    alignas(64) float parts[width<Arch>];
    most.store_aligned(parts);
    float largest = 0;
    for (const float part : parts) largest = part > largest ? part : largest;
    const float scale = largest / 127;
    const reg inverse(detail::finite_inverse(scale));
    alignas(64) std::int32_t rounded[q8_0::block];
    for (std::size_t i = 0; i < q8_0::block; i += width<Arch>) {
        // The largest number below 0.5, added towards the outside: ties go away from 0.
        const reg v = reg::load_unaligned(from + i) * inverse;
        const reg half = xsimd::copysign(reg(0.49999997f), v);
        xsimd::to_int(v + half).store_aligned(rounded + i);
    }
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < q8_0::block; ++i) {
        row.values[b * q8_0::block + i] = static_cast<typename Dot::input>(rounded[i]);
        sum += static_cast<std::int8_t>(rounded[i]);
    }
    zeros.store_aligned(parts);
    float not_finite = 0;  // NaN where a number is NaN or infinite
    for (const float part : parts) not_finite += part;
    row.scales[b] = scale + not_finite;
    row.shifts[b] = row.scales[b] * static_cast<float>(-Dot::bias * sum);
}

template <class Arch, class Dot>
void round_to_integers(const float* from, std::size_t depth, std::byte* to) noexcept {
    auto& row = *reinterpret_cast<integer_row<Dot>*>(to);
    for (std::size_t b = 0; b < depth / q8_0::block; ++b) round_block<Arch>(from + b * q8_0::block, row, b);
}

// Panels of q8_0, q4_0 or q4_1 for an integer_dot. A block of all outputs of a panel: their scales (and least numbers),
// then the bytes of a group of inputs, output by output, group after group. Of 4 bits byte i holds inputs i and i + 16.
template <class Arch, codec Weights, std::size_t Registers, class Dot = integer_dot<Arch, Weights>>
struct integer_panel {
    using dot = Dot;
    using storage = typename Weights::storage;
    using reg = lanes<Arch>;
    static constexpr std::size_t numbers = Registers * width<Arch>;
    static constexpr bool has_least = std::same_as<Weights, q4_1>;
    static constexpr std::size_t scale_bytes = sizeof(Weights::scales({}));
    static constexpr std::size_t bytes = sizeof(storage) - scale_bytes;  // of an output, without its scale
    static constexpr std::size_t halves = q8_0::block / bytes;
    static constexpr std::size_t groups = bytes / dot::group;  // of a half
    static constexpr std::size_t unit_bytes = numbers * sizeof(storage);

    static void put(const storage& block, std::size_t column, std::byte* to) noexcept {
        const auto* const from = reinterpret_cast<const std::byte*>(&block);
        put_scales<Weights, numbers>(block, column, to);
        to += numbers * scale_bytes;
        for (std::size_t i = 0; i < bytes; ++i)
            to[(i / dot::group * numbers + column) * dot::group + i % dot::group] =
                static_cast<std::byte>(std::to_integer<int>(from[scale_bytes + i]) + dot::stored_bias);
    }

    // Calls visit(panel, weights) for one group of inputs after the other, each of Panels panels.
    template <std::size_t Panels, class Visit>
    [[gnu::always_inline]] static void each(const std::byte* from, std::size_t apart,
                                            const Visit& visit) noexcept {
        from += numbers * scale_bytes;
        const auto half = [&]<int Half>(std::integral_constant<int, Half>) __attribute__((always_inline)) {
            TIFFIN_UNROLL(32)
            for (std::size_t g = 0; g < groups; ++g) TIFFIN_UNROLL(8)
            for (std::size_t p = 0; p < Panels; ++p) {
                typename dot::weights weights[Registers];
                TIFFIN_UNROLL(24)
                for (std::size_t r = 0; r < Registers; ++r)
                    weights[r] = dot::template load<Half>(from + p * apart +
                                                          (g * numbers + r * width<Arch>)*dot::group);
                visit(p, weights);
            }
        };
        half(std::integral_constant<int, 0>{});
        if constexpr (halves == 2) half(std::integral_constant<int, 1>{});
    }
    static reg scale(const std::byte* from, std::size_t r) noexcept {
        return panel_scale<Arch, numbers, 0>(from, r);
    }
    static reg least(const std::byte* from, std::size_t r) noexcept requires has_least {
        return panel_scale<Arch, numbers, 1>(from, r);
    }
};

// The same, widened once for many tiles.
template <class Arch, codec Weights, std::size_t Registers>
struct unpacked_integer_panel {
    using packed = integer_panel<Arch, Weights, Registers>;
    using dot = typename packed::dot;
    using reg = lanes<Arch>;
    using group = typename dot::weights[Registers];
    static constexpr bool has_least = packed::has_least;
    struct block {
        reg scales[Registers * (1 + has_least)];
        group weights[packed::halves * packed::groups];
    };
    static constexpr std::size_t unit_bytes = sizeof(block);

    static void unpack(const std::byte* from, std::size_t depth, std::byte* to) noexcept {
        auto* at = reinterpret_cast<block*>(to);
        for (std::size_t k = 0; k < depth; k += Weights::block, from += packed::unit_bytes, ++at) {
            TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r) at->scales[r] = packed::scale(from, r);
            if constexpr (has_least)
                for (std::size_t r = 0; r < Registers; ++r)
                    at->scales[Registers + r] = packed::least(from, r);
            group* next = at->weights;
            packed::template each<1>(
                from, 0,
                [&](std::size_t, const typename dot::weights(&weights)[Registers])
                    __attribute__((always_inline)) {
                        TIFFIN_UNROLL(24)
                        for (std::size_t r = 0; r < Registers; ++r) (*next)[r] = weights[r];
                        ++next;
                    });
        }
    }
    template <std::size_t Panels, class Visit>
        requires(Panels == 1)
    [[gnu::always_inline]] static void each(const std::byte* from, std::size_t, const Visit& visit) noexcept {
        const group* const all = reinterpret_cast<const block*>(from)->weights;
        TIFFIN_UNROLL(32)
        for (std::size_t g = 0; g < packed::halves * packed::groups; ++g) {
            typename dot::weights weights[Registers];
            TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r) weights[r] = all[g][r];
            visit(std::size_t{0}, weights);
        }
    }
    static reg scale(const std::byte* from, std::size_t r) noexcept {
        return reinterpret_cast<const block*>(from)->scales[r];
    }
    static reg least(const std::byte* from, std::size_t r) noexcept requires has_least {
        return reinterpret_cast<const block*>(from)->scales[Registers + r];
    }
};

// acc[panel][token][register] (+)= sum over blocks of d_w (d_x sum of q_x q_w) [+ m_w (d_x sum of q_x)].
// Shapes: as multiply_tile's; x holds integer_rows.
// Numerics: a block's sum of whole numbers is exact; it is rounded once as it is scaled by d_x, and once
//   as it is scaled by d_w and added; what the least numbers add comes before that, with a rounding of its own.
//   Blocks ascend, one accumulator per output.
template <class Panel, std::size_t Registers, std::size_t Tokens, std::size_t Panels>
void multiply_integer_tile(const std::byte* x, std::size_t depth, const std::byte* w, std::size_t apart,
                           float* acc, bool fresh, ahead next) noexcept {
    using dot = typename Panel::dot;
    using reg = typename Panel::reg;
    using arch = typename reg::arch_type;
    const auto* const rows = reinterpret_cast<const integer_row<dot>*>(x);
    for (std::size_t b = 0; b < depth / q8_0::block; ++b, w += Panel::unit_bytes) {
        typename dot::sums sums[Panels * Tokens][Registers]{};
        std::size_t k = b * q8_0::block;
        Panel::template each<Panels>(
            w, apart,
            [&](std::size_t p, const typename dot::weights(&weights)[Registers])
                __attribute__((always_inline)) {
                    if (p == 0 && k % ask_every == 0) next.ask();
                    TIFFIN_UNROLL(24)
                    for (std::size_t t = 0; t < Tokens; ++t) TIFFIN_UNROLL(24)
                    for (std::size_t r = 0; r < Registers; ++r)
                        dot::add(sums[p * Tokens + t][r], weights[r], rows[t].values + k);
                    if (p + 1 == Panels) k += dot::group;
                });
        float* at = acc;
        TIFFIN_UNROLL(24)
        for (std::size_t i = 0; i < Panels * Tokens; ++i) TIFFIN_UNROLL(24)
        for (std::size_t r = 0; r < Registers; ++r, at += reg::size) {
            const integer_row<dot>& row = rows[i % Tokens];
            const std::byte* const panel = w + i / Tokens * apart;
            reg before = fresh && b == 0 ? reg(0.0f) : reg::load_aligned(at);
            const reg total(dot::total(sums[i][r])), scale(row.scales[b]);
            if constexpr (Panel::has_least)
                before = multiply_add<arch>(Panel::least(panel, r), reg(row.shifts[b]), before);
            const reg sum = dot::bias == 0 || Panel::has_least
                                ? total * scale
                                : multiply_add<arch>(total, scale, reg(row.shifts[b]));
            multiply_add<arch>(Panel::scale(panel, r), sum, before).store_aligned(at);
        }
    }
}

}  // namespace simd_detail

TIFFIN_END
