// The floating-point formats of 8 bits (OCP 8-bit Floating Point 1.0), read only.
#pragma once

#include <tiffin/format/f16.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// 4 bits of exponent, 3 of mantissa: magnitudes up to 448, no infinities; the subnormals are multiples of 2^-9.
// Numerics: exact in f32; 0x7F and 0xFF are NaN. PyTorch's float8_e4m3fn.
struct f8_e4m3 {
    using storage = std::uint8_t;
    static constexpr dtype type = dtype::f8_e4m3;
    static constexpr std::size_t block = 1;

    static constexpr storage ones() noexcept { return 0x38; }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        // The f16 of these bits, whose exponents are 8 larger.
        const auto magnitude = static_cast<std::uint16_t>((from & 0x7Fu) << 7);
        const auto sign = static_cast<std::uint16_t>((from & 0x80u) << 8);
        const bool nan = (from & 0x7Fu) == 0x7Fu;
        *numbers = nan ? f16_to_f32(static_cast<std::uint16_t>(sign | 0x7E00u))
                       : f16_to_f32(static_cast<std::uint16_t>(sign | magnitude)) * 256;
    }
};

// 5 bits of exponent, 2 of mantissa: the upper half of an f16, magnitudes up to 57344, infinities and NaN.
// Numerics: exact in f32.
struct f8_e5m2 {
    using storage = std::uint8_t;
    static constexpr dtype type = dtype::f8_e5m2;
    static constexpr std::size_t block = 1;

    static constexpr storage ones() noexcept { return 0x3C; }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        *numbers = f16_to_f32(static_cast<std::uint16_t>(from << 8));
    }
};

// A power of two, 2^(e - 127), of the scales of other formats (OCP Microscaling Formats 1.0, 5.4.1).
// Numerics: exact in f32; e = 255 is NaN.
struct f8_e8m0 {
    using storage = std::uint8_t;
    static constexpr dtype type = dtype::f8_e8m0;
    static constexpr std::size_t block = 1;

    static constexpr storage ones() noexcept { return 127; }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const std::uint32_t e = from;
        *numbers = std::bit_cast<float>(e == 255 ? 0x7FC00000u : e == 0 ? 0x00400000u : e << 23);
    }
};

TIFFIN_END
