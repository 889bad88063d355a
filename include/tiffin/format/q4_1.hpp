#pragma once

#include <tiffin/format/f16.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// ggml's Q4_1: blocks of 32 values, an f16 scale d, an f16 minimum m and 32 codes q of 4 bits.
// x = d q + m, with m the least value, d = (the greatest - m) / 15 and q = (x - m) / d rounded. Byte i holds codes i
// (low bits) and i + 16. Shapes: the last axis is a multiple of 32.
// Numerics: 5 bits per value; error of a value up to d / 2 and the roundings of d and m. d q is exact in f32, the sum
//   rounds once, as in ggml. encode() gives the bits of ggml's quantize_row_q4_1_ref.
struct q4_1 {
    struct storage {
        std::uint16_t scale = 0, least = 0;  // f16
        std::array<std::uint8_t, 16> pairs{};
    };
    static constexpr dtype type = dtype::q4_1;
    static constexpr std::size_t block = 32;
    static constexpr float largest = 65504.0f;  // the minimum is an f16

    static constexpr int level_bits = 4, zero = 0;
    static constexpr std::size_t part = 32;
    static constexpr std::array<std::uint16_t, 2> scales(const storage& s) noexcept {
        return {{s.scale, s.least}};
    }
    static constexpr void levels(const storage& s, std::size_t, std::uint8_t* to) noexcept {
        for (std::size_t i = 0; i < 16; ++i) {
            to[i] = s.pairs[i] & 15;
            to[i + 16] = s.pairs[i] >> 4;
        }
    }
    static void encode(const float* numbers, storage& to) noexcept {
        const auto ends = std::minmax_element(numbers, numbers + block);
        const float least = *ends.first, scale = (*ends.second - least) / 15;
        const float inverse = detail::finite_inverse(scale);
        to.scale = f32_to_f16(scale);
        to.least = f32_to_f16(least);
        const auto level = [&](std::size_t i) {
            return std::min(15, static_cast<int>((numbers[i] - least) * inverse + 0.5f));
        };
        for (std::size_t i = 0; i < 16; ++i)
            to.pairs[i] = static_cast<std::uint8_t>(level(i) | level(i + 16) << 4);
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
