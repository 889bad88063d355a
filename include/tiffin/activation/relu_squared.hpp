#pragma once

#include <tiffin/activation/relu.hpp>
#include <tiffin/config.hpp>

TIFFIN_BEGIN

// The square of the rectifier: relu(z)^2. Numerics: one rounding; NaN stays NaN.
// Cost: a comparison and a product. Source: RWKV-8, docs/layers.md#deepembed.
struct relu_squared {
    static constexpr double flops() noexcept { return relu::flops() + 1; }

    template <class S>
    TIFFIN_HD S operator()(const S& z) const {
        const S r = relu{}(z);
        return r * r;
    }
};

TIFFIN_END
