// A whole composition's formula as one expression of its type, for kernels. (The CPU calls its policies one by one.)
#pragma once

#include <tiffin/grammar/parts_computed_first.hpp>
#include <tiffin/grammar/tree.hpp>

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

// Whether the parts of S are computed before it, for whole rows.
template <source_policy S>
constexpr bool parts_computed_first() noexcept {
    return detail::parts_computed_first(detail::kind_of<S>);
}

// The number of slots of the tree below S: its own tensors, then those of its parts in order; parts that are computed
// apart have none.
template <source_policy S>
constexpr std::size_t slot_count() noexcept {
    if constexpr (composite_source<S>) {
        if constexpr (!parts_computed_first<S>()) return []<std::size_t... I>(std::index_sequence<I...>) {
                return (own_tensors_of<S>::size + ... + slot_count<part_of<S, I>>());
            }
        (part_indices<S>{});
    }
    return own_tensors_of<S>::size;
}

// Offset of the first slot of part I from S's own first one.
template <composite_source S, std::size_t I>
constexpr std::size_t part_offset() noexcept {
    return []<std::size_t... J>(std::index_sequence<J...>) {
        return (own_tensors_of<S>::size + ... + slot_count<part_of<S, J>>());
    }
    (std::make_index_sequence<I>{});
}

namespace detail {

template <class S>
constexpr void collect_kinds(tensor_kind*& to) {
    for (const tensor_kind kind : own_kinds<S>) *to++ = kind;
    if constexpr (composite_source<S>)
        if constexpr (!tiffin::parts_computed_first<S>()) [&]<std::size_t... I>(std::index_sequence<I...>) {
                (collect_kinds<part_of<S, I>>(to), ...);
            }
    (part_indices<S>{});
}

template <class S>
inline constexpr auto slot_kinds = [] {
    std::array<tensor_kind, slot_count<S>()> kinds{};
    tensor_kind* to = kinds.data();
    collect_kinds<S>(to);
    return kinds;
}();

template <class S>
inline constexpr auto slot_ordinals = [] {
    std::array<std::size_t, slot_count<S>()> ordinals{};
    for (std::size_t i = 0; i < ordinals.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) ordinals[i] += slot_kinds<S>[j] == slot_kinds<S>[i] ? 1u : 0u;
    return ordinals;
}();

}  // namespace detail

// The number of slots of one kind.
template <source_policy S>
constexpr std::size_t count_of(tensor_kind kind) noexcept {
    std::size_t n = 0;
    for (const tensor_kind k : detail::slot_kinds<S>) n += k == kind ? 1u : 0u;
    return n;
}

// How many earlier slots are of the same kind.
template <source_policy S, std::size_t Slot>
inline constexpr std::size_t ordinal_of = detail::slot_ordinals<S>[Slot];

// Calls visit.operator()<First>(node, bound...) for every source in the formula of the tree below s, parts before the
// node that has them; First is the node's first slot. Parts that are computed apart are not entered. `bound`: the
// bound_node of s, where visit takes each node's, else nothing.
template <std::size_t First = 0, source_policy S, class Visit, class... Bound>
constexpr void visit_nodes(const S& s, const Visit& visit, const Bound&... bound) {
    if constexpr (composite_source<S>) {
        if constexpr (!parts_computed_first<S>()) {
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

// The value of source s at a place (token, features). Place is the backend's: `place.value<slot, Tensor>()` returns the
// value of tensor `slot` of the tree, and `place.by_number(formula, values...)` applies a formula that takes plain
// numbers only to registers.
template <std::size_t First = 0, source_policy S, class Place>
TIFFIN_HD auto evaluate(const S& s, const Place& place) {
    if constexpr (!composite_source<S>) {
        return s(source_place<S, First, Place>{place});
    } else if constexpr (parts_computed_first<S>()) {
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

// The operand of a norm: the value of its part, or the precomputed row of a part that is computed apart.
template <std::size_t First, row_normed_source S, class Place>
TIFFIN_HD auto row_value([[maybe_unused]] const S& s, const Place& place) {
    if constexpr (parts_computed_first<S>())
        return source_place<S, First, Place>{place}[computed{}];
    else
        return evaluate<First + part_offset<S, 0>()>(std::get<0>(s.parts()), place);
}

// Two factors whose dot product over the row a node's scale depends on: two parts, or a norm's part twice.
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

TIFFIN_END
