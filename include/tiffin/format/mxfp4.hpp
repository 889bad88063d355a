#pragma once

#include <tiffin/format/f16.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// MXFP4 as ggml lays it out, read only: blocks of 32 codes of 4 bits (E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
// negatives) and a scale 2^(e - 127) in a byte. Byte i holds codes i (low bits) and i + 16.
// Shapes: the last axis is a multiple of 32. Numerics: 4.25 bits per value; exact in f32 below e = 253. e = 255 is
// NaN (OCP Microscaling Formats 1.0, 5.4.1).
struct mxfp4 {
    struct storage {
        std::uint8_t exponent = 0;
        std::array<std::uint8_t, 16> pairs{};
    };
    static constexpr dtype type = dtype::mxfp4;
    static constexpr std::size_t block = 32;
    // What the codes stand for, doubled.
    static constexpr std::array<std::int8_t, 16> doubled{
        {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};

    // An f16 of the same class: 0 for a finite scale, else NaN.
    static constexpr std::array<std::uint16_t, 1> scales(const storage& s) noexcept {
        return {{static_cast<std::uint16_t>(s.exponent == 255 ? 0x7E00 : 0)}};
    }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s{127, {}};  // 1, as is code 2
        s.pairs.fill(0x22);
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        // Half the scale, which is subnormal for exponents 0 and 1.
        const std::uint32_t e = from.exponent;
        const float half = std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        for (std::size_t i = 0; i < 16; ++i) {
            numbers[i] = half * doubled[from.pairs[i] & 15];
            numbers[i + 16] = half * doubled[from.pairs[i] >> 4];
        }
    }
};
static_assert(sizeof(mxfp4::storage) == 17);

TIFFIN_END
