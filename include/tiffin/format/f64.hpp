#pragma once

#include <tiffin/dtype.hpp>

TIFFIN_BEGIN

// IEEE double precision: 8 bytes per number. Read only: `reference` computes with it as it is, what asks for f32
// rounds it.
struct f64 {
    using storage = double;
    static constexpr dtype type = dtype::f64;
    static constexpr std::size_t block = 1;

    static constexpr void decode(const storage& from, float* numbers) noexcept {
        *numbers = static_cast<float>(from);
    }
};

TIFFIN_END
