// What formulas need of a scalar type beyond arithmetic and <cmath>.
#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN

// `a` where the condition holds, else `b`. Vector types have an overload of their own, found by
// argument-dependent lookup, as they do for exp, erf, tanh and sqrt: so one formula serves double,
// float, a device thread and a SIMD register.
template <class S>
TIFFIN_HD constexpr S select(bool condition, const S& a, const S& b) noexcept {
    return condition ? a : b;
}

// A constant of a formula, rounded to the precision of the scalar or of a register's lanes.
template <class S>
TIFFIN_HD constexpr S constant(double value) {
    if constexpr (requires { typename S::value_type; })
        return S(static_cast<typename S::value_type>(value));
    else
        return static_cast<S>(value);
}

TIFFIN_END
