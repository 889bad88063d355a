#pragma once

#include <tiffin/scalar.hpp>

#include <cmath>

TIFFIN_BEGIN

// The tanh form of gelu: z/2 * (1 + tanh(sqrt(2/pi) * (z + 0.044715 z^3))).
// Numerics: in the scalar's own precision; z^3 may overflow to infinity, where tanh is exactly 1.
// Cost: three products and an add for the cubic, scale, tanh, add, two products.
// Source: docs/layers.md#activations; the gate of Gemma's per-layer embeddings.
struct gelu_tanh {
    static constexpr double flops() noexcept { return 9; }

    template <class S>
    TIFFIN_HD S operator()(const S& z) const {
        using std::tanh;
        const S inner = constant<S>(0.79788456080286535588) * (z + constant<S>(0.044715) * z * z * z);
        return constant<S>(0.5) * z * (S(1) + tanh(inner));
    }
};

TIFFIN_END
