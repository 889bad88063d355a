// The arithmetic of a plan's formulas over plain scalars, one value at a time.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>

TIFFIN_BEGIN

// Numerics: those of Scalar, the type of values in memory, of formulas and of routers.
template <class Scalar>
struct scalar_numbers {
    using number = Scalar;
    using wide = Scalar;
    using reg = Scalar;
    static constexpr std::size_t lane_count = 1;

    static const Scalar& load_row(const Scalar* from, std::size_t) noexcept { return *from; }
    static void store(const Scalar& value, Scalar* to, std::size_t) noexcept { *to = value; }
    template <class Formula, class... Values>
    static Scalar apply(const Formula& f, const Values&... values) noexcept {
        return f(values...);
    }
};

TIFFIN_END
