// Activations rounded to q8_0, as the products of whole numbers read them.
#pragma once

#include <tiffin/cpu/simd/lanes.hpp>
#include <tiffin/cpu/simd/tile.hpp>
#include <tiffin/format/q8_0.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

TIFFIN_BEGIN

namespace simd_detail {

// A token's depth block of activations, for weights of which `Part` inputs share a scale. Input: how a dot wants
// them. Bias: how much a weight within the dot exceeds the number that it stands for, where there is no least number.
template <class Input, std::size_t Part, int Bias, bool HasLeast>
struct alignas(64) integer_row {
    static constexpr std::size_t blocks = depth_block / q8_0::block;
    static constexpr std::size_t parts = q8_0::block / Part;  // of a block

    Input values[depth_block];
    float scales[blocks];
    // What the sum of a part begins at, - bias * sum of the values; or what a least number is multiplied by,
    // scale * sum of the values.
    std::conditional_t<HasLeast, float, std::int32_t> shifts[blocks * parts];
};

// Rounds block `b` of a row's activations as q8_0::round does, to the bit. A NaN or an infinity makes the
// scale NaN. Not inlined: g++ 12 derives the places of values and scales from one another by arithmetic that
// its analysis of aliases does not follow, and then drops the stores.
template <class Arch, class Input, std::size_t Part, int Bias, bool HasLeast>
[[gnu::noinline]] void round_block(const float* from, integer_row<Input, Part, Bias, HasLeast>& row,
                                   std::size_t b) noexcept {
    using reg = lanes<Arch>;
    reg most(0.0f), zeros(0.0f);
    for (std::size_t i = 0; i < q8_0::block; i += width<Arch>) {
        const reg v = reg::load_unaligned(from + i);
        most = xsimd::max(most, xsimd::abs(v));
        zeros = multiply_add<Arch>(v, reg(0.0f), zeros);
    }
    alignas(64) float lane[width<Arch>];
    most.store_aligned(lane);
    float largest = 0;
    for (const float one : lane) largest = one > largest ? one : largest;
    const float scale = largest / 127;
    const reg inverse(detail::finite_inverse(scale));
    alignas(64) std::int32_t rounded[q8_0::block];
    for (std::size_t i = 0; i < q8_0::block; i += width<Arch>) {
        // The largest number below 0.5, added towards the outside: ties go away from 0.
        const reg v = reg::load_unaligned(from + i) * inverse;
        const reg half = xsimd::copysign(reg(0.49999997f), v);
        xsimd::to_int(v + half).store_aligned(rounded + i);
    }
    zeros.store_aligned(lane);
    float not_finite = 0;  // NaN where a number is NaN or infinite
    for (const float one : lane) not_finite += one;
    row.scales[b] = scale + not_finite;
    for (std::size_t p = 0; p < row.parts; ++p) {
        std::int32_t sum = 0;
        for (std::size_t i = p * Part; i < (p + 1) * Part; ++i) {
            row.values[b * q8_0::block + i] = static_cast<Input>(rounded[i]);
            sum += static_cast<std::int8_t>(rounded[i]);
        }
        if constexpr (HasLeast)
            row.shifts[b * row.parts + p] = row.scales[b] * static_cast<float>(sum);
        else
            row.shifts[b * row.parts + p] = -Bias * sum;
    }
}

template <class Arch, class Row>
void round_to_integers(const float* from, std::size_t depth, std::byte* to) noexcept {
    auto& row = *reinterpret_cast<Row*>(to);
    for (std::size_t b = 0; b < depth / q8_0::block; ++b) round_block<Arch>(from + b * q8_0::block, row, b);
}

}  // namespace simd_detail

TIFFIN_END
