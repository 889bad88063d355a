#pragma once

#include <tiffin/format/f16.hpp>

#include <array>
#include <cmath>

TIFFIN_BEGIN

// ggml's Q8_0: blocks of 32 values, an f16 scale d and 32 signed bytes q.
// x = d q, with d = max |x| / 127 and q = x / d rounded to the nearest, ties away from 0.
// Shapes: the last axis of a tensor is a multiple of 32.
// Numerics: 8.5 bits per value; error of a value up to max |x| / 254 and the rounding of d, 2^-11 of x
//   (absolute below d = 2^-14, up to 127 * 2^-25).
//   d q is exact in f32. encode() gives the bits of ggml's quantize_row_q8_0_ref.
struct q8_0 {
    struct storage {
        std::uint16_t scale = 0;  // f16
        std::array<std::int8_t, 32> values{};
    };
    static constexpr dtype type = dtype::q8_0;
    static constexpr std::size_t block = 32;
    static constexpr float largest = 127 * 65504.0f;  // the scale is an f16

    static constexpr int level_bits = 8, zero = 0;
    static constexpr std::size_t part = 32;
    static constexpr std::array<std::uint16_t, 1> scales(const storage& s) noexcept { return {{s.scale}}; }
    static constexpr void levels(const storage& s, std::size_t, std::uint8_t* to) noexcept {
        for (std::size_t i = 0; i < block; ++i) to[i] = static_cast<std::uint8_t>(s.values[i]);
    }
    static void encode(const float* numbers, storage& to) noexcept {
        float most = 0;
        for (std::size_t i = 0; i < block; ++i) most = std::fmax(most, std::fabs(numbers[i]));
        const float scale = most / 127;
        const float inverse = detail::finite_inverse(scale);
        to.scale = f32_to_f16(scale);
        for (std::size_t i = 0; i < block; ++i)
            to.values[i] = static_cast<std::int8_t>(std::round(numbers[i] * inverse));
    }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s{0x3C00, {}};  // 1
        s.values.fill(1);
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale);
        for (std::size_t i = 0; i < block; ++i) numbers[i] = scale * static_cast<float>(from.values[i]);
    }
    // Rounds a block of activations, which are not stored: the same with a scale of f32, so that the relative error
    // is the same for values of any size (a block whose largest is below 4e-37 becomes 0).
    static void round(const float* numbers, float* to) noexcept {
        float most = 0;
        for (std::size_t i = 0; i < block; ++i) most = std::fmax(most, std::fabs(numbers[i]));
        const float scale = most / 127;
        const float inverse = detail::finite_inverse(scale);
        for (std::size_t i = 0; i < block; ++i) to[i] = scale * std::round(numbers[i] * inverse);
    }
};
static_assert(sizeof(q8_0::storage) == 34);

TIFFIN_END
