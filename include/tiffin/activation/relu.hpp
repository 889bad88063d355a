#pragma once

#include <tiffin/config.hpp>
#include <tiffin/scalar.hpp>

TIFFIN_BEGIN

// The rectifier: relu(z) = z where z is at least 0, else 0.
// Numerics: exact; NaN stays NaN.
// Cost: one comparison.
// Source: ReGLU.
struct relu {
    static constexpr double flops() noexcept { return 1; }

    template <class S>
    TIFFIN_HD S operator()(const S& z) const {
        return select(z < S(0), S(0), z);
    }
};

TIFFIN_END
