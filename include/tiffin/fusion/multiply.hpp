#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN

// The fusion multiply(g, u) = g * u: GLU, STEM: the gate scales the up source.
// Numerics: one rounding. Cost: one operation per element. Source: StructMoE's gated form.
struct multiply {
    static constexpr double flops() noexcept { return 1; }

    template <class S>
    TIFFIN_HD S operator()(const S& g, const S& u) const {
        return g * u;
    }
};

TIFFIN_END
