#pragma once

#include <tiffin/grammar/option.hpp>
#include <tiffin/scalar.hpp>

#include <cmath>
#include <tuple>

TIFFIN_BEGIN

// The norm l2(x) = x / (norm2(x) + eps).
// Shapes: x (T, d_model), row by row.
// Numerics: the sum of squares in the backend's scalar (f32 in `eigen` and `simd`); eps is added to
//   the norm, so a row of zeros stays zero.
// Cost: 3 FLOPs per element.
// Source: ReToken and MoRT, Eq. 1.
struct l2 {
    static constexpr bool weighted = false;
    float eps = 1e-6f;
    static constexpr auto options() noexcept { return std::tuple(option{"eps", &l2::eps}); }

    static constexpr double flops() noexcept { return 3; }

    template <class S>
    TIFFIN_HD S scale(const S& sum_of_squares, const S& /*count*/) const {
        using std::sqrt;
        return S(1) / (sqrt(sum_of_squares) + constant<S>(eps));
    }
    template <class S>
    TIFFIN_HD S operator()(const S& x, const S& scale, const S& /*weight*/) const {
        return x * scale;
    }
};

TIFFIN_END
