#pragma once

#include <tiffin/format/f16.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// ggml's Q6_K, read only: blocks of 256 codes q of 6 bits in 16 parts, each with a scale s of 8 bits; an f16 scale d
// of these. x = (d s) (q - 32).
// Of 128 codes, byte i of 64 holds the four low bits of codes i and i + 64, byte i of 32 the two high ones of
// codes i, i + 32, i + 64 and i + 96. Shapes: the last axis is a multiple of 256.
// Numerics: 6.6 bits per value; d s is exact in f32, the product rounds once, as in ggml.
struct q6_k {
    struct storage {
        std::array<std::uint8_t, 128> low{};
        std::array<std::uint8_t, 64> high{};
        std::array<std::int8_t, 16> parts{};
        std::uint16_t scale = 0;  // f16
    };
    static constexpr dtype type = dtype::q6_k;
    static constexpr std::size_t block = 256;

    static constexpr int level_bits = 6, zero = 32;
    static constexpr std::size_t part = 16;

    static constexpr std::array<std::uint16_t, 1> scales(const storage& s) noexcept { return {{s.scale}}; }
    static constexpr int factor(const storage& s, std::size_t, std::size_t i) noexcept { return s.parts[i]; }
    static constexpr void levels(const storage& s, std::size_t p, std::uint8_t* to) noexcept {
        for (std::size_t i = 0; i < 32; ++i)
            to[i] = static_cast<std::uint8_t>((s.low[p / 4 * 64 + p % 2 * 32 + i] >> p / 2 % 2 * 4 & 15) |
                                              (s.high[p / 4 * 32 + i] >> p % 4 * 2 & 3) << 4);
    }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s;
        s.scale = 0x2800;  // 1 / 32: parts are -1, codes -32
        s.parts.fill(-1);
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale);
        for (std::size_t i = 0; i < block; ++i) {
            const std::size_t half = i / 128, in = i % 128;
            const int level = (from.low[half * 64 + in % 64] >> in / 64 * 4 & 15) |
                              (from.high[half * 32 + in % 32] >> in / 32 * 2 & 3) << 4;
            numbers[i] = scale * static_cast<float>(from.parts[i / 16]) * static_cast<float>(level - 32);
        }
    }
};
static_assert(sizeof(q6_k::storage) == 210);

TIFFIN_END
