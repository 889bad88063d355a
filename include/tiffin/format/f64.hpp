#pragma once

#include <tiffin/dtype.hpp>

TIFFIN_BEGIN

// IEEE double precision: 8 bytes per value. Read only: `reference` computes with it unrounded, all other readers
// round it to f32.
struct f64 {
    using storage = double;
    static constexpr dtype type = dtype::f64;
    static constexpr std::size_t block = 1;

    static constexpr void decode(const storage& from, float* numbers) noexcept {
        *numbers = static_cast<float>(from);
    }
};

TIFFIN_END
