// How a source is evaluated: its parts, its own tensors, and the place at which its formula is computed.
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
// type is the backend's: a double, a float, a SIMD register, a value with its error bound.
#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

template <composite_source S>
using parts_of = std::remove_cvref_t<decltype(std::declval<const S&>().parts())>;

template <composite_source S, std::size_t I>
using part_of = std::remove_cvref_t<std::tuple_element_t<I, parts_of<S>>>;

template <composite_source S>
inline constexpr std::size_t part_count = std::tuple_size_v<parts_of<S>>;

template <composite_source S>
using part_indices = std::make_index_sequence<part_count<S>>;

namespace detail {

template <class S>
struct own_tensors {
    using type = tensor_list<>;
};
template <class S>
    requires requires {
        S::tensors::size;
    }
struct own_tensors<S> {
    using type = typename S::tensors;
};

template <class... Tensors>
constexpr auto kinds_in(tensor_list<Tensors...>) {
    return std::array<tensor_kind, sizeof...(Tensors)>{{Tensors::kind...}};
}

}  // namespace detail

// The tensors that S declares itself, not those of its parts.
template <source_policy S>
using own_tensors_of = typename detail::own_tensors<S>::type;

// Their kinds.
template <source_policy S>
inline constexpr auto own_kinds = detail::kinds_in(own_tensors_of<S>{});

// The place as a source sees it: the backend's place, with the source's own tensors found by their type.
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

    // formula(values...); value by value where it is written for plain scalars only.
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

// From the sum over a row (of its squares, or of the products of two rows) to the scalar that scales the row.
template <row_scaled_source S, class Number>
TIFFIN_HD Number scale_of_row(const S& s, const Number& sum, const Number& width) {
    if constexpr (row_normed_source<S>)
        return s.norm.scale(sum, width);
    else
        return s.scale(sum, width);
}

TIFFIN_END
