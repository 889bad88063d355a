#pragma once

#include <tiffin/format/f16.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace detail {

// Codes of 5 bits: four low ones in pairs, as in q4_0, and the fifth of code i in bit i of `high`.
struct five_bits {
    std::array<std::uint8_t, 4> high{};
    std::array<std::uint8_t, 16> pairs{};

    [[nodiscard]] constexpr int operator[](std::size_t i) const noexcept {
        const int low = i < 16 ? pairs[i] & 15 : pairs[i - 16] >> 4;
        return low | (high[i / 8] >> i % 8 & 1) << 4;
    }
    // Unpacks all codes, in a loop that compilers vectorise.
    constexpr void put(std::uint8_t* to) const noexcept {
        std::uint32_t fifth = 0;
        for (std::size_t i = 0; i < 4; ++i) fifth |= std::uint32_t{high[i]} << 8 * i;
        for (std::size_t i = 0; i < 16; ++i) {
            to[i] = static_cast<std::uint8_t>((pairs[i] & 15) | (fifth >> i & 1) << 4);
            to[i + 16] = static_cast<std::uint8_t>(pairs[i] >> 4 | (fifth >> (i + 16) & 1) << 4);
        }
    }
};

}  // namespace detail

// ggml's Q5_0, read only: blocks of 32 values, an f16 scale d and 32 codes q of 5 bits. x = d (q - 16).
// Shapes: the last axis is a multiple of 32. Numerics: 5.5 bits per value; exact in f32.
struct q5_0 {
    struct storage {
        std::uint16_t scale = 0;  // f16
        detail::five_bits levels{};
    };
    static constexpr dtype type = dtype::q5_0;
    static constexpr std::size_t block = 32;

    static constexpr int level_bits = 5, zero = 16;
    static constexpr std::size_t part = 32;
    static constexpr std::array<std::uint16_t, 1> scales(const storage& s) noexcept { return {{s.scale}}; }
    static constexpr void levels(const storage& s, std::size_t, std::uint8_t* to) noexcept {
        s.levels.put(to);
    }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s{0xBC00, {}};  // -1, with codes of 15
        s.levels.pairs.fill(0xFF);
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale);
        for (std::size_t i = 0; i < block; ++i) numbers[i] = scale * static_cast<float>(from.levels[i] - 16);
    }
};
static_assert(sizeof(q5_0::storage) == 22);

TIFFIN_END
