#pragma once

#include <tiffin/format/f16.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// ggml's Q2_K, read only: blocks of 256 codes q of 2 bits in 16 parts, each with a scale s and a minimum m of
// 4 bits; f16 scales d and d_min of these. x = (d s) q - (d_min m).
// Byte i of 32 bytes holds codes i, i + 32, i + 64 and i + 96 of 128. Shapes: the last axis is a multiple of 256.
// Numerics: 2.6 bits per value; the products are exact in f32, the difference rounds once, as in ggml.
struct q2_k {
    struct storage {
        std::array<std::uint8_t, 16> parts{};  // s (low bits) and m
        std::array<std::uint8_t, 64> levels{};
        std::uint16_t scale = 0, least = 0;  // f16
    };
    static constexpr dtype type = dtype::q2_k;
    static constexpr std::size_t block = 256;

    static constexpr std::array<std::uint16_t, 2> scales(const storage& s) noexcept {
        return {{s.scale, s.least}};
    }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s;
        s.least = 0xBC00;  // -1, once in each part
        s.parts.fill(0x10);
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale), least = f16_to_f32(from.least);
        for (std::size_t i = 0; i < block; ++i) {
            const int part = from.parts[i / 16];
            const int level = from.levels[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
            numbers[i] = scale * static_cast<float>(part & 15) * static_cast<float>(level) -
                         least * static_cast<float>(part >> 4);
        }
    }
};
static_assert(sizeof(q2_k::storage) == 84);

TIFFIN_END
