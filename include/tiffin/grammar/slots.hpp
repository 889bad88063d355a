// The tensors that the formula of a tree of sources sees, known by its type alone.
#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/roles.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>

#include <array>
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

template <source_policy S>
constexpr bool parts_apart() noexcept;

// The slots of the tree below S: its own tensors, then those of its parts in their order; of parts that are
// computed apart, none.
template <source_policy S>
constexpr std::size_t slot_count() noexcept {
    if constexpr (composite_source<S>) {
        if constexpr (!parts_apart<S>()) return []<std::size_t... I>(std::index_sequence<I...>) {
                return (own_tensors_of<S>::size + ... + slot_count<part_of<S, I>>());
            }
        (part_indices<S>{});
    }
    return own_tensors_of<S>::size;
}

// Where the slots of part I begin, counted from S's own first one.
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
        if constexpr (!parts_apart<S>()) [&]<std::size_t... I>(std::index_sequence<I...>) {
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

// How many slots of the same kind come before this one.
template <source_policy S, std::size_t Slot>
inline constexpr std::size_t ordinal_of = detail::slot_ordinals<S>[Slot];

// Whether the formula of S multiplies the input of S.
template <source_policy S>
inline constexpr bool multiplies = count_of<S>(tensor_kind::projection) > 0;

// Whether the parts of S are computed before it, for whole rows: those of a chain, of a node with rows of
// its own, and of a norm over a product, whose row is not known before.
template <source_policy S>
constexpr bool parts_apart() noexcept {
    if constexpr (row_normed_source<S>)
        return multiplies<part_of<S, 0>>;
    else
        return chained_source<S> || row_source<S>;
}

TIFFIN_END
