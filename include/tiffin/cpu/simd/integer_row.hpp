// Activations rounded to q8_0, in the layout of the integer dot products.
#pragma once

#include <tiffin/cpu/simd/lanes.hpp>
#include <tiffin/cpu/simd/tile.hpp>
#include <tiffin/format/q8_0.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

TIFFIN_BEGIN

namespace simd_detail {

// A token's depth block of activations, for weights of which `Part` inputs share a scale. Input: the dot's type of
// activations. Bias: by how much a weight in the dot exceeds the integer that it represents, where there is no
// minimum.
template <class Input, std::size_t Part, int Bias, bool HasLeast>
struct alignas(64) integer_row {
    static constexpr std::size_t blocks = depth_block / q8_0::block;
    static constexpr std::size_t parts = q8_0::block / Part;  // of a block

    Input values[depth_block];
    float scales[blocks];
    // The initial value of a part's sum, - bias * sum of the values; or the multiplier of a minimum, scale * sum of
    // the values.
    std::conditional_t<HasLeast, float, std::int32_t> shifts[blocks * parts];
};

// Reduces each `Part` lanes to the first of them, half with half, which compilers do in registers.
template <std::size_t Part, class Number, std::size_t Count, class Join>
[[gnu::always_inline]] inline void join_lanes(Number (&lanes)[Count], const Join& join) noexcept {
    TIFFIN_UNROLL(5)
    for (std::size_t n = Part / 2; n > 0; n /= 2)
        for (std::size_t first = 0; first < Count; first += Part)
            for (std::size_t i = first; i < first + n; ++i) lanes[i] = join(lanes[i], lanes[i + n]);
}

// Rounds block `b` of a row's activations as q8_0::round does, to the bit. A NaN or an infinity makes the scale NaN.
// Not inlined: g++ 12 derives the addresses of values and scales from each other by arithmetic that its alias
// analysis does not follow, and then drops the stores.
template <class Arch, class Input, std::size_t Part, int Bias, bool HasLeast>
[[gnu::noinline]] void round_block(const float* from, integer_row<Input, Part, Bias, HasLeast>& row,
                                   std::size_t b) noexcept {
    using reg = lanes<Arch>;
    using whole = int_lanes<Arch>;
    // Floats of one sign are ordered as their bits are, and non-finite ones are the largest.
    constexpr std::int32_t not_finite = 0x7F800000;
    whole most(0);
    for (std::size_t i = 0; i < q8_0::block; i += width<Arch>)
        most = xsimd::max(most, xsimd::bitwise_cast<whole>(xsimd::abs(reg::load_unaligned(from + i))));
    alignas(64) std::int32_t largest[width<Arch>];
    most.store_aligned(largest);
    join_lanes<width<Arch>>(largest, [](std::int32_t x, std::int32_t y) { return x > y ? x : y; });
    const float scale = std::bit_cast<float>(largest[0]) / 127;
    const reg inverse(detail::finite_inverse(scale));
    alignas(64)
        std::uint32_t rounded[q8_0::block];  // quantised integers; may wrap around for non-finite inputs
    for (std::size_t i = 0; i < q8_0::block; i += width<Arch>) {
        // The largest float below 0.5, added away from 0: ties round away from 0.
        const reg v = reg::load_unaligned(from + i) * inverse;
        const reg half = xsimd::copysign(reg(0.49999997f), v);
        xsimd::to_int(v + half).store_aligned(reinterpret_cast<std::int32_t*>(rounded + i));
    }
    for (std::size_t i = 0; i < q8_0::block; ++i)
        row.values[b * q8_0::block + i] = static_cast<Input>(rounded[i]);
    row.scales[b] = largest[0] < not_finite ? scale : std::numeric_limits<float>::quiet_NaN();
    join_lanes<Part>(rounded, [](std::uint32_t x, std::uint32_t y) { return x + y; });
    for (std::size_t p = 0; p < row.parts; ++p)
        if constexpr (HasLeast)
            row.shifts[b * row.parts + p] =
                row.scales[b] * static_cast<float>(static_cast<std::int32_t>(rounded[p * Part]));
        else
            row.shifts[b * row.parts + p] =
                static_cast<std::int32_t>(static_cast<std::uint32_t>(-Bias) * rounded[p * Part]);
}

// Rounds `count` activations into a row, from index `first` on.
template <class Arch, class Row>
void round_to_integers(const float* from, std::size_t first, std::size_t count, std::byte* to) noexcept {
    auto& row = *reinterpret_cast<Row*>(to);
    for (std::size_t k = 0; k < count; k += q8_0::block)
        round_block<Arch>(from + k, row, (first + k) / q8_0::block);
}

}  // namespace simd_detail

TIFFIN_END
