// Integers of 8 and of 4 bits that stand for values only with a scale and a bias (see format/scales.hpp), read only.
#pragma once

#include <tiffin/dtype.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// 0 to 255. Numerics: exact in f32.
struct u8_codes {
    using storage = std::uint8_t;
    static constexpr dtype type = dtype::u8;
    static constexpr std::size_t block = 1;

    static constexpr storage ones() noexcept { return 1; }
    static constexpr void decode(const storage& from, float* numbers) noexcept { *numbers = from; }
};

// 0 to 15, two in a byte: the first in its low bits. Numerics: exact in f32.
struct u4_codes {
    using storage = std::uint8_t;
    static constexpr dtype type = dtype::u4;
    static constexpr std::size_t block = 2;

    static constexpr storage ones() noexcept { return 0x11; }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        numbers[0] = static_cast<float>(from & 15);
        numbers[1] = static_cast<float>(from >> 4);
    }
};

TIFFIN_END
