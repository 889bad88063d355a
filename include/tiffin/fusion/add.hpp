#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN

// The fusion add(g, u) = g + u: the gate's value and the up source are summed.
// Numerics: one rounding. Cost: one operation per element. Source: MeKi's default and StructMoE's
// post-activation form.
struct add {
    static constexpr double flops() noexcept { return 1; }

    template <class S>
    TIFFIN_HD S operator()(const S& g, const S& u) const {
        return g + u;
    }
};

TIFFIN_END
