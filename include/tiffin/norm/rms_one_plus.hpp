#pragma once

#include <tiffin/norm/rms.hpp>

TIFFIN_BEGIN

// The norm rms_one_plus(x) = x * rsqrt(mean(x^2) + eps) * (1 + w): rms whose weight is stored as the
// distance from 1.
// Shapes, numerics: those of rms, and one rounding more. Cost: 5 FLOPs per element.
// Source: Gemma 2 and 3.
struct rms_one_plus : rms {
    static constexpr double neutral_weight = 0;

    constexpr rms_one_plus() : rms{1e-6f} {}
    constexpr explicit rms_one_plus(float epsilon) : rms{epsilon} {}

    static constexpr double flops() noexcept { return 5; }

    template <class S>
    TIFFIN_HD S operator()(const S& x, const S& scale, const S& weight) const {
        return x * scale * (S(1) + weight);
    }
};

TIFFIN_END
