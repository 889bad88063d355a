#pragma once

#include <tiffin/format/q5_0.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// ggml's Q5_1, read only: blocks of 32 values, an f16 scale d, an f16 minimum m and 32 codes q of 5 bits.
// x = d q + m. Shapes: the last axis is a multiple of 32. Numerics: 6 bits per value; d q is exact in f32, the
// sum rounds once, as in ggml.
struct q5_1 {
    struct storage {
        std::uint16_t scale = 0, least = 0;  // f16
        detail::five_bits levels{};
    };
    static constexpr dtype type = dtype::q5_1;
    static constexpr std::size_t block = 32;

    static constexpr int level_bits = 5, zero = 0;
    static constexpr std::size_t part = 32;
    static constexpr std::array<std::uint16_t, 2> scales(const storage& s) noexcept {
        return {{s.scale, s.least}};
    }
    static constexpr void levels(const storage& s, std::size_t, std::uint8_t* to) noexcept {
        s.levels.put(to);
    }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        return {0, 0x3C00, {}};  // the minimum 1
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale), least = f16_to_f32(from.least);
        for (std::size_t i = 0; i < block; ++i)
            numbers[i] = scale * static_cast<float>(from.levels[i]) + least;
    }
};
static_assert(sizeof(q5_1::storage) == 24);

TIFFIN_END
