// What every backend does with a source: visit its nodes, evaluate it. (Its tensors: specs.hpp.)
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
// where it has tensors of its own. A chain (through.hpp) is computed for whole rows first. The value
// type is the backend's: a double, a float, a SIMD register, a number with its error bound.
#pragma once

#include <tiffin/concepts.hpp>
#include <tiffin/source/specs.hpp>

#include <concepts>
#include <cstddef>
#include <tuple>
#include <utility>

TIFFIN_BEGIN

// Whether a walk goes on into the parts of a chain, whose rows have widths of their own.
enum class chains { entered, left_out };

// Calls visit.operator()<First>(node) for every source of the tree below s, parts before what they are
// part of; First is the node's first tensor.
template <chains Chains, std::size_t First = 0, source_policy S, class Visit>
constexpr void visit_nodes(const S& s, const Visit& visit) {
    if constexpr (composite_source<S> && (Chains == chains::entered || !chained_source<S>)) {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            const auto& parts = s.parts();
            (visit_nodes<Chains, First + part_offset<S, I>()>(std::get<I>(parts), visit), ...);
        }
        (part_indices<S>{});
    }
    visit.template operator()<First>(s);
}

// The place a source sees: the backend's place, with the source's own tensors found by their type.
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
    if constexpr (chained_source<S>) {
        return place.template value<First, computed>();
    } else if constexpr (composite_source<S>) {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
            const auto& parts = s.parts();
            return detail::join<First>(s, place,
                                       evaluate<First + part_offset<S, I>()>(std::get<I>(parts), place)...);
        }
        (part_indices<S>{});
    } else {
        return s(source_place<S, First, Place>{place});
    }
}

// FLOPs an element that the tree spends outside its matrix products, chains left out.
template <source_policy S>
constexpr double elementwise_flops(const S& s) {
    double total = 0;
    visit_nodes<chains::left_out>(s, [&]<std::size_t First>(const auto& node) {
        if constexpr (requires { node.flops(); }) total += node.flops();
    });
    return total;
}

TIFFIN_END
