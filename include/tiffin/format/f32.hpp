#pragma once

#include <tiffin/dtype.hpp>

TIFFIN_BEGIN

// IEEE single precision: 4 bytes per value, no rounding.
struct f32 {
    using storage = float;
    static constexpr dtype type = dtype::f32;
    static constexpr std::size_t block = 1;
    static constexpr float largest = 0x1.fffffep127f;

    static constexpr void encode(const float* numbers, storage& to) noexcept { to = *numbers; }
    static constexpr void decode(const storage& from, float* numbers) noexcept { *numbers = from; }
};

TIFFIN_END
