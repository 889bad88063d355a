#pragma once

#include <tiffin/config.hpp>

#include <cmath>

TIFFIN_BEGIN

// The sigmoid-weighted linear unit: silu(z) = z * sigmoid(z) = z / (1 + exp(-z)).
// Numerics: in the scalar's own precision; exp(-z) overflows to infinity below about -88 in f32,
//   which gives the right limit -0. silu(-infinity) is NaN, as z * sigmoid(z) is.
// Cost: negate, exp, add, divide.
// Source: STEM Eq. 4; the gate of SwiGLU.
struct silu {
    static constexpr double flops() noexcept { return 4; }

    template <class S>
    TIFFIN_HD S operator()(const S& z) const {
        using std::exp;
        return z / (S(1) + exp(-z));
    }
};

TIFFIN_END
