// What every backend does with a source: visit its nodes, evaluate it.
//
// A leaf declares tensors and a formula over `at`, the place (token, feature) being computed:
//
//     struct scaled_embedding {                            // s * U[t]
//         using rows = tiffin::table<"weight">;
//         using scale = tiffin::vector<"scale">;
//         using tensors = tiffin::tensor_list<rows, scale>;
//         static constexpr std::string_view name = "scaled_embed";
//         TIFFIN_HD auto operator()(const auto& at) const { return at[rows{}] * at[scale{}]; }
//     };
//
// A node has other sources as `parts()` and a formula over their values, or over `at` and their values
// where it has tensors of its own. Chains and row sources are computed for whole rows first. The value
// type is the backend's: a double, a float, a SIMD register, a number with its error bound.
#pragma once

#include <tiffin/grammar/slots.hpp>

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

// Calls visit.operator()<First>(node, bound...) for every source that the formula of the tree below s goes
// through, parts before what they are part of; First is the node's first slot. Parts that are computed
// apart are not entered. `bound`: the bound_node of s, where visit wants each node's, else nothing.
template <std::size_t First = 0, source_policy S, class Visit, class... Bound>
constexpr void visit_nodes(const S& s, const Visit& visit, const Bound&... bound) {
    if constexpr (composite_source<S>) {
        if constexpr (!parts_apart<S>()) {
            const auto& parts = s.parts();
            const auto part = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
                visit_nodes<First + part_offset<S, I>()>(std::get<I>(parts), visit, bound.parts[I]...);
            };
            [&]<std::size_t... I>(std::index_sequence<I...>) {
                (part(std::integral_constant<std::size_t, I>{}), ...);
            }
            (part_indices<S>{});
        }
    }
    visit.template operator()<First>(s, bound...);
}

// The place that a source sees: the backend's place, with the source's own tensors found by their type.
template <class Source, std::size_t First, class Place>
struct source_place {
    const Place& place;

    template <tensor_declaration Tensor>
    TIFFIN_HD auto operator[](Tensor) const {
        using tensors = own_tensors_of<Source>;
        static_assert(tensors::template contains<Tensor>,
                      "tiffin: at[tensor]: this source reads a tensor that it does not declare; "
                      "add it to the source's `tensors` list");
        return place.template value<First + tensors::template index_of<Tensor>(), Tensor>();
    }

    // formula(values...); number by number where it is written for plain numbers only.
    template <class Formula, class... Values>
    TIFFIN_HD auto apply(const Formula& formula, const Values&... values) const {
        if constexpr (std::invocable<const Formula&, const Values&...>)
            return formula(values...);
        else
            return place.by_number(formula, values...);
    }
};

namespace detail {

template <std::size_t First, class S, class Place, class... Values>
TIFFIN_HD auto join(const S& s, const Place& place, const Values&... values) {
    const source_place<S, First, Place> at{place};
    if constexpr (own_tensors_of<S>::size > 0)
        return s(at, values...);
    else
        return at.apply(s, values...);
}

}  // namespace detail

// The value of source s at a place. Place is the backend's: `place.value<slot, Tensor>()` yields
// the value that tensor `slot` of the tree has there, and `place.by_number(formula, values...)` calls
// a formula that takes plain numbers only, where the place's values are something else.
template <std::size_t First = 0, source_policy S, class Place>
TIFFIN_HD auto evaluate(const S& s, const Place& place) {
    if constexpr (!composite_source<S>) {
        return s(source_place<S, First, Place>{place});
    } else if constexpr (parts_apart<S>()) {
        const auto row = source_place<S, First, Place>{place}[computed{}];
        if constexpr (row_normed_source<S>)
            return detail::join<First>(s, place, row);
        else
            return row;
    } else {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
            const auto& parts = s.parts();
            return detail::join<First>(s, place,
                                       evaluate<First + part_offset<S, I>()>(std::get<I>(parts), place)...);
        }
        (part_indices<S>{});
    }
}

// The value that a norm reads of a row: that of its part, also where this is computed apart.
template <std::size_t First, row_normed_source S, class Place>
TIFFIN_HD auto row_value([[maybe_unused]] const S& s, const Place& place) {
    if constexpr (parts_apart<S>())
        return source_place<S, First, Place>{place}[computed{}];
    else
        return evaluate<First + part_offset<S, 0>()>(std::get<0>(s.parts()), place);
}

// Two values whose product, summed over the row, a node is scaled by: those of two parts, or of a norm's part twice.
template <class Value>
struct row_factors {
    Value left;
    Value right;
};
template <std::size_t First, row_scaled_source S, class Place>
TIFFIN_HD auto factors_of_row(const S& s, const Place& place) {
    if constexpr (row_normed_source<S>) {
        const auto v = row_value<First>(s, place);
        return row_factors<std::remove_const_t<decltype(v)>>{v, v};
    } else {
        const auto& parts = s.parts();
        const auto left = evaluate<First + part_offset<S, 0>()>(std::get<0>(parts), place);
        return row_factors<std::remove_const_t<decltype(left)>>{
            left, evaluate<First + part_offset<S, 1>()>(std::get<1>(parts), place)};
    }
}

// From that sum to the number that scales the row.
template <row_scaled_source S, class Number>
TIFFIN_HD Number scale_of_row(const S& s, const Number& sum, const Number& width) {
    if constexpr (row_normed_source<S>)
        return s.norm.scale(sum, width);
    else
        return s.scale(sum, width);
}

TIFFIN_END
