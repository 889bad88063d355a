#pragma once

#include <tiffin/format/f16.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// ggml's Q4_1, read only: blocks of 32 numbers, an f16 scale d, an f16 least number m and 32 numbers q of 4 bits.
// x = d q + m. Byte i holds numbers i (low bits) and i + 16. Shapes: the last axis is a multiple of 32.
// Numerics: 5 bits per number; d q is exact in f32, the sum rounds once, as in ggml.
struct q4_1 {
    struct storage {
        std::uint16_t scale = 0, least = 0;  // f16
        std::array<std::uint8_t, 16> pairs{};
    };
    static constexpr dtype type = dtype::q4_1;
    static constexpr std::size_t block = 32;

    static constexpr std::array<std::uint16_t, 2> scales(const storage& s) noexcept {
        return {{s.scale, s.least}};
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale), least = f16_to_f32(from.least);
        for (std::size_t i = 0; i < 16; ++i) {
            numbers[i] = scale * static_cast<float>(from.pairs[i] & 15) + least;
            numbers[i + 16] = scale * static_cast<float>(from.pairs[i] >> 4) + least;
        }
    }
};
static_assert(sizeof(q4_1::storage) == 20);

TIFFIN_END
