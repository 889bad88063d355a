#pragma once

#include <tiffin/dtype.hpp>

#include <bit>
#include <cstdint>

TIFFIN_BEGIN

// The f32 of a bf16's bits; exact.
constexpr float bf16_to_f32(std::uint16_t bits) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// The bits of the nearest bf16, ties to even; NaN stays NaN, and quiet.
constexpr std::uint16_t f32_to_bf16(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// bfloat16: 2 bytes per value, 8 bits of precision, the range of f32.
// Numerics: relative error of a value up to 2^-8.
struct bf16 {
    using storage = std::uint16_t;
    static constexpr dtype type = dtype::bf16;
    static constexpr std::size_t block = 1;
    static constexpr float largest = 0x1.fep127f;

    static constexpr void encode(const float* numbers, storage& to) noexcept { to = f32_to_bf16(*numbers); }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        *numbers = bf16_to_f32(from);
    }
};

TIFFIN_END
