#pragma once

#include <tiffin/grammar/option.hpp>
#include <tiffin/scalar.hpp>

#include <cmath>
#include <tuple>

TIFFIN_BEGIN

// Of a row with mean 0, what of each value is above a threshold that about the k largest of n pass: z = relu(x - c s), s
// the standard deviation sqrt(mean(x^2)) and c the quantile of the normal distribution, Phi^-1(1 - k / n). It is a norm:
// that of a row less its mean, normed<gaussian_top_k, centred>, stands before the activation of a sparse gate.
// Shapes: x, z (T, n), row by row.
// Numerics: the sum of squares in the backend's scalar (f32 in `eigen` and `simd`); `deviations` is c, by default for
//   5 % of the values. A row of zeros stays zero. llama.cpp divides by n - 1.
// Cost: 4 FLOPs per element. Source: You et al., Spark Transformer, arXiv 2506.06644; Gemma 3n's first layers.
struct gaussian_top_k {
    static constexpr bool weighted = false;
    float deviations = 1.6448536f;
    static constexpr auto options() noexcept {
        return std::tuple(option{"deviations", &gaussian_top_k::deviations});
    }

    // That which this share of the values passes. Precondition: more than 0, less than 1.
    static gaussian_top_k passing(double share) {
        double low = -40, high = 40;
        for (int i = 0; i < 64; ++i) {
            const double middle = (low + high) / 2;
            (std::erfc(middle / std::sqrt(2.0)) / 2 > share ? low : high) = middle;
        }
        return {static_cast<float>(low)};
    }

    static constexpr double flops() noexcept { return 4; }

    template <class S>
    TIFFIN_HD S scale(const S& sum_of_squares, const S& count) const {
        using std::sqrt;
        return constant<S>(deviations) * sqrt(sum_of_squares / count);
    }
    template <class S>
    TIFFIN_HD S operator()(const S& x, const S& scale, const S& /*weight*/) const {
        const S above = x - scale;
        return select(above < S(0), S(0), above);
    }
};

TIFFIN_END
