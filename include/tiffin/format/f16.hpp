#pragma once

#include <tiffin/dtype.hpp>

#include <bit>
#include <cstdint>

TIFFIN_BEGIN

// The f32 of an IEEE half's bits; exact, subnormals, infinities and NaN included.
constexpr float f16_to_f32(std::uint16_t bits) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
    const std::uint32_t mantissa = bits & 0x3FFu;
    if (exponent == 0) {  // zero or subnormal: mantissa units of 2^-24
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
    }
    const std::uint32_t widened = exponent == 31 ? 255u : exponent + 112u;
    return std::bit_cast<float>(sign | (widened << 23) | (mantissa << 13));
}

// The bits of the nearest IEEE half, ties to even; overflow becomes infinity, NaN stays NaN.
constexpr std::uint16_t f32_to_f16(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const auto signed_bits = [sign](std::uint32_t m) { return static_cast<std::uint16_t>(sign | m); };
    if (magnitude > 0x7F800000u) return signed_bits(0x7E00u | ((magnitude >> 13) & 0x3FFu));
    if (magnitude >= 0x477FF000u) return signed_bits(0x7C00u);  // 65520 and above
    if (magnitude < 0x38800000u) {
        // Subnormal: added to 1/2, whose last place is 2^-24, the value is rounded by the addition.
        const float sum = std::bit_cast<float>(magnitude) + 0.5f;
        return signed_bits(std::bit_cast<std::uint32_t>(sum) - 0x3F000000u);
    }
    const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return signed_bits((rounded >> 13) - (112u << 10));
}

namespace detail {

constexpr bool is_finite_f16(std::uint16_t bits) noexcept {
    return (bits & 0x7C00u) != 0x7C00u;
}

// 1 / scale of a block; 0 where it overflows f32, as such a scale is 0 in f16 too.
constexpr float finite_inverse(float scale) noexcept {
    return scale < -0x1p-128f || scale > 0x1p-128f ? 1 / scale : 0.0f;
}

}  // namespace detail

// IEEE half precision: 2 bytes per value, 11 bits of precision, up to 65504.
// Numerics: relative error of a value up to 2^-11; below 2^-14 absolute, up to 2^-25.
struct f16 {
    using storage = std::uint16_t;
    static constexpr dtype type = dtype::f16;
    static constexpr std::size_t block = 1;
    static constexpr float largest = 65504;

    static constexpr void encode(const float* numbers, storage& to) noexcept { to = f32_to_f16(*numbers); }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        *numbers = f16_to_f32(from);
    }
};

TIFFIN_END
