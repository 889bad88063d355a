// The two things every backend does with a source: list its tensors, evaluate it.
//
// A leaf declares tensors and a formula over `at`, the place (token, feature) being computed:
//
//     struct scaled_embedding {                            // s * U[t]
//         using rows = tiffin::table<"weight">;
//         using scale = tiffin::vector<"scale">;
//         using tensors = tiffin::tensor_list<rows, scale>;
//         static constexpr std::string_view name = "scaled_embed";
//         auto operator()(const auto& at) const { return at[rows{}] * at[scale{}]; }
//     };
//
// A composite has other sources as `parts()` and a formula over their values. The value type is
// the backend's: a double, a float, a SIMD register, a number with its error bound.
#pragma once

#include <tiffin/concepts.hpp>
#include <tiffin/source/tensor_kinds.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

template <composite_source S>
using parts_of = decltype(std::declval<const S&>().parts());

template <composite_source S, std::size_t I>
using part_of = std::remove_cvref_t<std::tuple_element_t<I, std::remove_cvref_t<parts_of<S>>>>;

template <composite_source S>
using part_indices = std::make_index_sequence<std::tuple_size_v<std::remove_cvref_t<parts_of<S>>>>;

// The number of tensors in the tree below S.
template <source_policy S>
constexpr std::size_t tensor_count() noexcept {
    if constexpr (composite_source<S>) {
        return []<std::size_t... I>(std::index_sequence<I...>) {
            return (std::size_t{0} + ... + tensor_count<part_of<S, I>>());
        }
        (part_indices<S>{});
    } else {
        return S::tensors::size;
    }
}

namespace detail {

// A leaf's tensors are called after the leaf's own name, else after the role it plays.
template <class S>
constexpr std::string_view owner_name(std::string_view role) noexcept {
    if constexpr (requires { std::string_view{S::name}; })
        return S::name;
    else
        return role;
}

// A composite may give its parts roles of their own: `gate_proj` and `up_proj`.
template <class S>
constexpr std::string_view part_role(std::size_t i, std::string_view role) noexcept {
    if constexpr (requires { S::roles[0]; })
        return S::roles[i];
    else
        return role;
}

template <class... Tensors>
constexpr void append_specs(tensor_list<Tensors...>, std::string_view owner, tensor_spec*& out) {
    const auto append = [&]<class T>(std::type_identity<T>) {
        tensor_spec& spec = *out++;
        spec = {owner, T::name, T::kind, T::needed, {}, T::axes.size()};
        for (std::size_t i = 0; i < T::axes.size(); ++i) spec.axes[i] = T::axes[i];
    };
    (append(std::type_identity<Tensors>{}), ...);
}

template <class S>
constexpr void collect_specs(std::string_view role, tensor_spec*& out) {
    if constexpr (composite_source<S>) {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            (collect_specs<part_of<S, I>>(part_role<S>(I, role), out), ...);
        }
        (part_indices<S>{});
    } else {
        append_specs(typename S::tensors{}, owner_name<S>(role), out);
    }
}

}  // namespace detail

// The tensors of the tree below S, depth first; S plays the role `role` in its block.
template <source_policy S>
constexpr auto specs_of(std::string_view role) {
    std::array<tensor_spec, tensor_count<S>()> specs{};
    tensor_spec* out = specs.data();
    detail::collect_specs<S>(role, out);
    return specs;
}

// How many tensors of the same kind come before tensor `slot` in the tree below S.
template <source_policy S>
constexpr std::size_t ordinal_of(std::size_t slot) {
    const auto specs = specs_of<S>("");
    std::size_t n = 0;
    for (std::size_t i = 0; i < slot; ++i) n += specs[i].kind == specs[slot].kind ? 1u : 0u;
    return n;
}

// The number of tensors of one kind in the tree below S.
template <source_policy S>
constexpr std::size_t count_of(tensor_kind kind) {
    std::size_t n = 0;
    for (const tensor_spec& spec : specs_of<S>("")) n += spec.kind == kind ? 1u : 0u;
    return n;
}

// The place a leaf sees: the backend's place, with the leaf's tensors found by their type.
template <class Leaf, std::size_t First, class Place>
struct leaf_place {
    const Place& place;

    template <tensor_declaration Tensor>
    TIFFIN_HD auto operator[](Tensor) const {
        using tensors = typename Leaf::tensors;
        static_assert(tensors::template contains<Tensor>,
                      "tiffin: at[tensor]: this source reads a tensor that it does not declare; "
                      "add it to the source's `tensors` list");
        return place.template value<First + tensors::template index_of<Tensor>(), Tensor>();
    }
};

namespace detail {

template <class S, class Place, class... Values>
TIFFIN_HD auto join(const S& s, const Place& place, const Values&... values) {
    if constexpr (std::invocable<const S&, const Values&...>)
        return s(values...);
    else
        return place.by_number(s, values...);
}

}  // namespace detail

// The value of source s at a place. Place is the backend's: `place.value<slot, Tensor>()` yields
// the value that tensor `slot` of the tree has there, and `place.by_number(formula, values...)` calls
// a formula that takes plain numbers only, where the place's values are something else.
template <std::size_t First = 0, source_policy S, class Place>
TIFFIN_HD auto evaluate(const S& s, const Place& place) {
    if constexpr (composite_source<S>) {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
            constexpr auto first = [] {
                std::array<std::size_t, sizeof...(I) + 1> offsets{First};
                ((offsets[I + 1] = offsets[I] + tensor_count<part_of<S, I>>()), ...);
                return offsets;
            }();
            const auto& parts = s.parts();
            return detail::join(s, place, evaluate<first[I]>(std::get<I>(parts), place)...);
        }
        (part_indices<S>{});
    } else {
        return s(leaf_place<S, First, Place>{place});
    }
}

// FLOPs an element that the tree spends outside its matrix products.
template <source_policy S>
constexpr double elementwise_flops(const S& s) {
    if constexpr (composite_source<S>) {
        return std::apply([&](const auto&... part) { return (s.flops() + ... + elementwise_flops(part)); },
                          s.parts());
    } else if constexpr (requires { s.flops(); }) {
        return s.flops();
    } else {
        return 0;
    }
}

TIFFIN_END
