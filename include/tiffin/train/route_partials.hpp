// Derivatives of a router's formulas for one token: few values, each of which may depend on all the others.
#pragma once

#include <tiffin/train/partials.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

TIFFIN_BEGIN

namespace train_detail {

// Routes and their derivatives are computed in double, also where layers are trained in f32.
template <class Number>
using wide_number = std::conditional_t<std::is_floating_point_v<Number>, double, Number>;
// Partials per evaluation; more variables take several evaluations.
inline constexpr std::size_t partials_at_once = 8;
template <class Wide>
using route_partials = partials<Wide, partials_at_once>;

// Calls visit(i, sum_j d[j] dout[j] / dv_i) for variables i in [0, n). evaluate(variable) returns `outputs` dual
// numbers; variable(i, v) makes variable i, of value v.
template <class Number, class Evaluate, class Visit>
void each_partial(std::size_t n, std::size_t outputs, const Number* d, const Evaluate& evaluate,
                  const Visit& visit) {
    using wide = wide_number<Number>;
    using dual = route_partials<wide>;
    for (std::size_t from = 0; from < n; from += partials_at_once) {
        const dual* const out = evaluate([&](std::size_t i, const Number& v) {
            return i >= from && i < from + partials_at_once ? dual::variable(wide(v), i - from)
                                                            : dual(wide(v));
        });
        for (std::size_t i = from; i < std::min(n, from + partials_at_once); ++i) {
            wide total(0);
            for (std::size_t j = 0; j < outputs; ++j) total = total + wide(d[j]) * out[j].by[i - from];
            visit(i, static_cast<Number>(total));
        }
    }
}

}  // namespace train_detail

TIFFIN_END
