#pragma once

#include <tiffin/tensor.hpp>

TIFFIN_BEGIN

// IEEE single precision: 4 bytes a number, no rounding.
struct f32 {
    using storage = float;
    static constexpr dtype type = dtype::f32;

    static constexpr storage store(float value) noexcept { return value; }
    static constexpr float load(storage stored) noexcept { return stored; }
};

TIFFIN_END
