#pragma once

#include <tiffin/scalar.hpp>

#include <cmath>

TIFFIN_BEGIN

// The Gaussian error linear unit, exact form: gelu(z) = z/2 * (1 + erf(z / sqrt 2)).
// Numerics: in the scalar's own precision; 1 + erf cancels for z below -3, where the absolute error
//   stays below one unit in the last place of z.
// Cost: scale, erf, add, two products.
// Source: docs/layers.md#activations; the default of StructMoE.
struct gelu {
    static constexpr double flops() noexcept { return 5; }

    template <class S>
    TIFFIN_HD S operator()(const S& z) const {
        using std::erf;
        return constant<S>(0.5) * z * (S(1) + erf(z * constant<S>(0.70710678118654752440)));
    }
};

TIFFIN_END
