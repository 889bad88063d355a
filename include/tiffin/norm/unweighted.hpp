#pragma once

#include <tiffin/grammar/concepts.hpp>

TIFFIN_BEGIN

// A norm without its weight: unweighted<rms>(x) = x * rsqrt(mean(x^2) + eps).
// Shapes, numerics, cost: those of the norm, with 1 for the weight. Source: docs/layers.md#norms, where a
//   scale of the modulator replaces the weight.
template <norm_policy Norm>
struct unweighted : Norm {
    static_assert(
        !requires { Norm::neutral_weight; },
        "tiffin: unweighted<Norm>: this norm adds its weight to 1; without it, it is another norm: write "
        "unweighted<rms>");
    static constexpr bool weighted = false;
};

TIFFIN_END
