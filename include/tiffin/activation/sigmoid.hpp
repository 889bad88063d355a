#pragma once

#include <tiffin/config.hpp>

#include <cmath>

TIFFIN_BEGIN

// The logistic function: sigmoid(z) = 1 / (1 + exp(-z)).
// Numerics: in the scalar's own precision; saturates to 0 and 1 without overflow in the result.
// Cost: negate, exp, add, divide.
// Source: MeKi's gate.
struct sigmoid {
    static constexpr double flops() noexcept { return 4; }

    template <class S>
    TIFFIN_HD S operator()(const S& z) const {
        using std::exp;
        return S(1) / (S(1) + exp(-z));
    }
};

TIFFIN_END
