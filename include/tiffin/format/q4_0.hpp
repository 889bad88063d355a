#pragma once

#include <tiffin/format/f16.hpp>

#include <algorithm>
#include <array>
#include <cmath>

TIFFIN_BEGIN

// ggml's Q4_0: blocks of 32 values, an f16 scale d and 32 codes q of 4 bits.
// x = d (q - 8), with d = -m / 8, m the value of the largest magnitude with its sign, and q = x / d + 8
// rounded. Byte i holds codes i (low bits) and i + 16. Shapes: the last axis of a tensor is a multiple
// of 32. Numerics: 4.5 bits per value; error of a value up to |m| / 16 (|m| / 8 opposite to m) and the
// rounding of d. d (q - 8) is exact in f32. encode() gives the bits of ggml's quantize_row_q4_0_ref.
struct q4_0 {
    struct storage {
        std::uint16_t scale = 0;  // f16
        std::array<std::uint8_t, 16> pairs{};
    };
    static constexpr dtype type = dtype::q4_0;
    static constexpr std::size_t block = 32;
    static constexpr float largest = 8 * 65504.0f;  // the scale is an f16

    static constexpr int level_bits = 4, zero = 8;
    static constexpr std::size_t part = 32;
    static constexpr std::array<std::uint16_t, 1> scales(const storage& s) noexcept { return {{s.scale}}; }
    static constexpr void levels(const storage& s, std::size_t, std::uint8_t* to) noexcept {
        for (std::size_t i = 0; i < 16; ++i) {
            to[i] = s.pairs[i] & 15;
            to[i + 16] = s.pairs[i] >> 4;
        }
    }
    static void encode(const float* numbers, storage& to) noexcept {
        float most = 0;  // of the largest magnitude, the first of several
        for (std::size_t i = 0; i < block; ++i)
            if (std::fabs(numbers[i]) > std::fabs(most)) most = numbers[i];
        const float scale = most / -8;
        const float inverse = detail::finite_inverse(scale);
        to.scale = f32_to_f16(scale);
        const auto level = [&](std::size_t i) {
            return std::min(15, static_cast<int>(numbers[i] * inverse + 8.5f));
        };
        for (std::size_t i = 0; i < 16; ++i)
            to.pairs[i] = static_cast<std::uint8_t>(level(i) | level(i + 16) << 4);
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale);
        for (std::size_t i = 0; i < 16; ++i) {
            numbers[i] = scale * static_cast<float>((from.pairs[i] & 15) - 8);
            numbers[i + 16] = scale * static_cast<float>((from.pairs[i] >> 4) - 8);
        }
    }
    // Rounds a block of activations, which are not stored: the same with a scale of f32 (see q8_0).
    static void round(const float* numbers, float* to) noexcept {
        float most = 0;
        for (std::size_t i = 0; i < block; ++i)
            if (std::fabs(numbers[i]) > std::fabs(most)) most = numbers[i];
        const float scale = most / -8;
        const float inverse = detail::finite_inverse(scale);
        for (std::size_t i = 0; i < block; ++i) {
            const float level = std::trunc(numbers[i] * inverse + 8.5f);  // NaN stays NaN
            to[i] = scale * ((level > 15 ? 15 : level) - 8);
        }
    }
};
static_assert(sizeof(q4_0::storage) == 18);

TIFFIN_END
