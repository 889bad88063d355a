#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN

// No norm: a row stays as it is. Backends skip the pass. Cost: none.
struct no_norm {
    static constexpr bool weighted = false;

    static constexpr double flops() noexcept { return 0; }

    template <class S>
    TIFFIN_HD S scale(const S&, const S&) const {
        return S(1);
    }
    template <class S>
    TIFFIN_HD S operator()(const S& x, const S&, const S&) const {
        return x;
    }
};

TIFFIN_END
