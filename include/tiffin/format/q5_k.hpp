#pragma once

#include <tiffin/format/q4_k.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// ggml's Q5_K, read only: q4_k with a fifth bit, that of code i in bit i / 32 of byte i % 32 of `high`.
// Shapes: the last axis is a multiple of 256. Numerics: 5.5 bits per value; as q4_k.
struct q5_k {
    struct storage {
        std::uint16_t scale = 0, least = 0;  // f16
        detail::k_parts parts{};
        std::array<std::uint8_t, 32> high{};
        std::array<std::uint8_t, 128> pairs{};
    };
    static constexpr dtype type = dtype::q5_k;
    static constexpr std::size_t block = 256;

    static constexpr int level_bits = 5, zero = 0;
    static constexpr std::size_t part = 32;

    static constexpr std::array<std::uint16_t, 2> scales(const storage& s) noexcept {
        return {{s.scale, s.least}};
    }
    static constexpr int factor(const storage& s, std::size_t kind, std::size_t i) noexcept {
        return s.parts.factor(kind, i);
    }
    static constexpr void levels(const storage& s, std::size_t p, std::uint8_t* to) noexcept {
        for (std::size_t i = 0; i < 32; ++i)
            to[i] = static_cast<std::uint8_t>((s.pairs[p / 2 * 32 + i] >> p % 2 * 4 & 15) |
                                              (s.high[i] >> p & 1) << 4);
    }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s;
        s.least = 0xBC00;  // -1, once in each part
        s.parts.bytes = {0, 0, 0, 0, 1, 1, 1, 1, 0x10, 0x10, 0x10, 0x10};
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const auto level = [&](std::size_t part, std::size_t i) {
            return (from.pairs[part / 2 * 32 + i] >> part % 2 * 4 & 15) | (from.high[i] >> part & 1) << 4;
        };
        from.parts.decode(from.scale, from.least, level, numbers);
    }
};
static_assert(sizeof(q5_k::storage) == 176);

TIFFIN_END
