#pragma once

#include <tiffin/grammar/option.hpp>
#include <tiffin/scalar.hpp>

#include <cmath>
#include <tuple>

TIFFIN_BEGIN

// The norm rms(x) = x * rsqrt(mean(x^2) + eps) * w.
// Shapes: x (T, d_model), row by row; w (d_model), given as `post_norm.weight`.
// Numerics: the sum of squares in the backend's scalar (f32 in `eigen` and `simd`); eps is added to
//   the mean square, so a row of zeros stays zero.
// Cost: 4 FLOPs per element.
// Source: STEM's code (eps 1e-5), MeKi (1e-6), Gemma 3n.
struct rms {
    static constexpr bool weighted = true;
    float eps = 1e-5f;
    static constexpr auto options() noexcept { return std::tuple(option{"eps", &rms::eps}); }

    static constexpr double flops() noexcept { return 4; }

    template <class S>
    TIFFIN_HD S scale(const S& sum_of_squares, const S& count) const {
        using std::sqrt;
        return S(1) / sqrt(sum_of_squares / count + constant<S>(eps));
    }
    template <class S>
    TIFFIN_HD S operator()(const S& x, const S& scale, const S& weight) const {
        return x * scale * weight;
    }
};

TIFFIN_END
