#pragma once

#include <tiffin/format/f16.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// ggml's Q3_K, read only: blocks of 256 codes q of 3 bits in 16 parts, each with a scale s of 6 bits; an f16 scale d
// of these. x = (d (s - 32)) (q - 4).
// The two low bits lie as in q2_k, the third of code i in bit i / 32 of byte i % 32 of `high`. The four low bits
// of s lie in pairs (s_i and s_{i + 8}), the two high ones in the last four bytes, four per byte.
// Shapes: the last axis is a multiple of 256. Numerics: 3.4 bits per value; exact in f32.
struct q3_k {
    struct storage {
        std::array<std::uint8_t, 32> high{};
        std::array<std::uint8_t, 64> levels{};
        std::array<std::uint8_t, 12> parts{};
        std::uint16_t scale = 0;  // f16
    };
    static constexpr dtype type = dtype::q3_k;
    static constexpr std::size_t block = 256;

    static constexpr std::array<std::uint16_t, 1> scales(const storage& s) noexcept { return {{s.scale}}; }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s;
        s.scale = 0x2000;  // 1 / 128: parts are -32, codes -4
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale);
        for (std::size_t i = 0; i < block; ++i) {
            const std::size_t part = i / 16;
            const int low = from.parts[part % 8] >> part / 8 * 4 & 15;
            const int high = from.parts[8 + part % 4] >> part / 4 * 2 & 3;
            const int level = (from.levels[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) |
                              (from.high[i % 32] >> i / 32 & 1) << 2;
            numbers[i] = scale * static_cast<float>((low | high << 4) - 32) * static_cast<float>(level - 4);
        }
    }
};
static_assert(sizeof(q3_k::storage) == 110);

TIFFIN_END
