#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN

// No activation: identity(z) = z. Numerics: exact. Cost: none.
struct identity {
    static constexpr double flops() noexcept { return 0; }

    template <class S>
    TIFFIN_HD S operator()(const S& z) const {
        return z;
    }
};

TIFFIN_END
