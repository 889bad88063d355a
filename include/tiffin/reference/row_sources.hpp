// One token of the sources whose rows are not a formula: mixtures, delays, other inputs, kinds known at run
// time.
#pragma once

#include <tiffin/reference/row.hpp>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <type_traits>

TIFFIN_BEGIN

namespace reference_detail {

// Part number i of those that are repeated.
template <source_policy Source>
auto repeated_part(const bound_source<Source>& s, std::size_t i) {
    using part = std::remove_cvref_t<decltype(s.source.repeated(i))>;
    return bound_source<part>{s.source.repeated(i), s.bound.parts[part_count<Source> + i], s.inputs};
}
template <source_policy Source>
std::size_t repetitions(const bound_source<Source>& s) {
    return s.bound.parts.size() - part_count<Source>;
}

template <class Scalar, source_policy Source>
void add_rows(const bound_source<Source>& s, const token_arguments<Scalar>& token, const Scalar* x,
              Scalar* out, Scalar* scratch) {
    Scalar* const row = scratch;
    Scalar* const rest = row + s.bound.width;
    const std::size_t width = s.bound.width;
    if constexpr (detail::has_role<Source, mixture_role>) {
        const std::size_t k = s.bound.choices;
        auto* const chosen = reinterpret_cast<choice<Scalar>*>(rest);
        Scalar* const inner = rest + 2 * k;
        route(s.source.router, own_kinds<Source>, s.bound, token, x, s.inputs, inner, chosen);
        if constexpr (part_count < Source >> 0)
            evaluate_row(s.template part<0>(), token, x, out, inner);
        else
            std::fill_n(out, width, Scalar(0));
        for (std::size_t e = 0; e < repetitions(s); ++e)
            for (std::size_t i = 0; i < k; ++i) {
                if (static_cast<std::size_t>(chosen[i].expert) != e) continue;
                evaluate_row(repeated_part(s, e), token, x, row, inner);
                for (std::size_t j = 0; j < width; ++j) out[j] = out[j] + chosen[i].weight * row[j];
            }
    } else {
        for (std::size_t i = 0; i < repetitions(s); ++i) {
            evaluate_row(repeated_part(s, i), token, x, i == 0 ? out : row, rest);
            for (std::size_t j = 0; i > 0 && j < width; ++j) out[j] = out[j] + row[j];
        }
    }
}

template <class Scalar, source_policy Source>
void evaluate_row_source(const bound_source<Source>& s, const token_arguments<Scalar>& token, const Scalar* x,
                         Scalar* out, Scalar* scratch) {
    if constexpr (detail::has_role<Source, residual_role>) {
        auto part = s.template part<0>();
        part.inputs = token.d_model;
        evaluate_row(part, token, token.residual, out, scratch);
    } else if constexpr (detail::has_role<Source, delay_role>) {
        evaluate_row(s.template part<0>(), token, x, out, scratch);
        for (std::size_t j = 0; j < s.bound.width; ++j) {
            const Scalar taken = token.carried_is_due ? token.carried[j] : Scalar(0);
            token.carried[j] = out[j];
            out[j] = taken;
        }
    } else if constexpr (detail::has_role<Source, runtime_role>) {
        s.source.evaluate(s.bound.parts[0], s.inputs, token, x, out, scratch);
    } else {
        add_rows(s, token, x, out, scratch);
    }
}

template <source_policy Source>
std::size_t row_source_scratch(const bound_source<Source>& s) {
    if constexpr (detail::has_role<Source, runtime_role>) {
        return s.source.scratch(s.bound.parts[0], s.inputs);
    } else {
        std::size_t most = 0, own = 0;
        if constexpr (part_count < Source >> 0) most = scratch_numbers(s.template part<0>());
        if constexpr (repeating_source<Source>) {
            own = s.bound.width + 2 * s.bound.choices;
            if constexpr (detail::has_role<Source, mixture_role>)
                most = std::max(
                    most, route_scratch<detail::router_of<Source>>(own_kinds<Source>, s.bound, s.inputs));
            for (std::size_t i = 0; i < repetitions(s); ++i)
                most = std::max(most, scratch_numbers(repeated_part(s, i)));
        }
        return own + most;
    }
}

}  // namespace reference_detail

TIFFIN_END
