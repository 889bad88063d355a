// The floating-point formats of 8 bits (OCP 8-bit Floating Point 1.0), read only.
#pragma once

#include <tiffin/dtype.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace detail {

// (m + 2^Mantissa) 2^(e - Bias - Mantissa), or m 2^(1 - Bias - Mantissa) where e is 0; from the magnitude `special` on the
// bits of f32 are those of `what`, too. Without branches, so that loops over values become vector code.
template <int Mantissa, int Bias>
constexpr float f8_number(std::uint8_t from, std::int32_t special, std::uint32_t what) noexcept {
    const std::int32_t magnitude = from & 0x7F, e = magnitude >> Mantissa;
    const std::int32_t whole = e > 0 ? 1 : 0, is_special = magnitude >= special ? -1 : 0;
    const std::int32_t m = (magnitude & ((1 << Mantissa) - 1)) | whole << Mantissa;
    const auto power = static_cast<std::uint32_t>(e + 1 - whole + 127 - Bias - Mantissa) << 23;
    const float number = static_cast<float>(m) * std::bit_cast<float>(power);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(number) |
                                (static_cast<std::uint32_t>(is_special) & what) | (from & 0x80u) << 24);
}

}  // namespace detail

// 4 bits of exponent, 3 of mantissa: magnitudes up to 448, no infinities; the subnormals are multiples of 2^-9.
// Numerics: exact in f32; 0x7F and 0xFF are NaN. PyTorch's float8_e4m3fn.
struct f8_e4m3 {
    using storage = std::uint8_t;
    static constexpr dtype type = dtype::f8_e4m3;
    static constexpr std::size_t block = 1;

    static constexpr storage ones() noexcept { return 0x38; }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        *numbers = detail::f8_number<3, 7>(from, 0x7F, 0x7FC00000u);
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
        *numbers = detail::f8_number<2, 15>(from, 0x7C, 0x7F800000u);
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
