// A fusion chosen at run time, as in a layer file.
#pragma once

#include <tiffin/fusion/add.hpp>
#include <tiffin/fusion/multiply.hpp>

TIFFIN_BEGIN

// multiply or add. Numerics: those of the one chosen, to the bit. Cost: a predictable branch a vector more.
struct any_fusion {
    bool adds = false;

    static constexpr double flops() noexcept { return 1; }

    template <class S>
    TIFFIN_HD S operator()(const S& g, const S& u) const {
        return adds ? add{}(g, u) : multiply{}(g, u);
    }
};

TIFFIN_END
