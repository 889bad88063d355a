// The tensors of a tree of sources: how many there are, what they are called, which sizes they share.
#pragma once

#include <tiffin/concepts.hpp>
#include <tiffin/source/roles.hpp>
#include <tiffin/source/tensor_kinds.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

template <composite_source S>
using parts_of = std::remove_cvref_t<decltype(std::declval<const S&>().parts())>;

template <composite_source S, std::size_t I>
using part_of = std::remove_cvref_t<std::tuple_element_t<I, parts_of<S>>>;

template <composite_source S>
using part_indices = std::make_index_sequence<std::tuple_size_v<parts_of<S>>>;

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

}  // namespace detail

// The tensors that S declares itself, not those of its parts.
template <source_policy S>
using own_tensors_of = typename detail::own_tensors<S>::type;

// The number of tensors in the tree below S: its own, then those of its parts in their order.
template <source_policy S>
constexpr std::size_t tensor_count() noexcept {
    if constexpr (composite_source<S>) return []<std::size_t... I>(std::index_sequence<I...>) {
            return (own_tensors_of<S>::size + ... + tensor_count<part_of<S, I>>());
        }
    (part_indices<S>{});
    else return own_tensors_of<S>::size;
}

// Where the tensors of part I begin, counted from S's own first one.
template <composite_source S, std::size_t I>
constexpr std::size_t part_offset() noexcept {
    return []<std::size_t... J>(std::index_sequence<J...>) {
        return (own_tensors_of<S>::size + ... + tensor_count<part_of<S, J>>());
    }
    (std::make_index_sequence<I>{});
}

namespace detail {

// Where a source stands in its block: what its tensors are called after, and the sizes around it.
struct standing {
    std::string_view scope;
    std::string_view role;
    std::uint8_t width = tensor_spec::width_size;
    std::uint8_t input = tensor_spec::input_size;
    bool nested = false;
};

struct spec_writer {
    tensor_spec* out;
    std::uint8_t next_size = 2;

    constexpr std::uint8_t fresh() noexcept { return next_size++; }
};

// A leaf's tensors are called after the leaf's own name, else after the role it plays.
template <class S>
constexpr std::string_view owner_name(std::string_view role) noexcept {
    if constexpr (requires { std::string_view{S::name}; })
        return S::name;
    else
        return role;
}

template <class... Tensors>
constexpr void append_specs(tensor_list<Tensors...>, std::string_view owner, const standing& where,
                            spec_writer& to) {
    constexpr bool routed = any_routed(tensor_list<Tensors...>{});
    const std::uint8_t experts = routed ? to.fresh() : std::uint8_t{0};
    const std::uint8_t rank = routed ? to.fresh() : std::uint8_t{0};
    [[maybe_unused]] const auto append = [&]<class T>(std::type_identity<T>) {
        tensor_spec& spec = *to.out++;
        spec = {where.scope, owner, T::name, T::kind, T::needed, {}, {}, T::axes.size(), where.nested};
        for (std::size_t i = 0; i != T::axes.size(); ++i) {
            spec.axes[i] = T::axes[i];
            spec.sizes[i] = T::axes[i] == axis::width     ? where.width
                            : T::axes[i] == axis::input   ? where.input
                            : T::axes[i] == axis::experts ? experts
                            : T::axes[i] == axis::rank    ? rank
                            : T::axes[i] == axis::vocab   ? tensor_spec::vocab_size
                                                          : tensor_spec::free_size;
        }
    };
    (append(std::type_identity<Tensors>{}), ...);
}

// A composite may give its parts roles of their own: `gate_proj` and `up_proj`.
template <class S>
constexpr std::string_view role_of_part(std::size_t part, std::string_view role) noexcept {
    if constexpr (requires { S::roles[0]; })
        return S::roles[part];
    else
        return role;
}

template <class S>
constexpr void collect_specs(const standing& where, spec_writer& to) {
    check_role<S, own_tensors_of<S>>();
    append_specs(own_tensors_of<S>{}, owner_name<S>(where.role), where, to);
    if constexpr (chained_source<S>) {
        // The first part reads what the chain reads, each later one the value of the one before it.
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            std::uint8_t input = where.input;
            const auto collect = [&]<std::size_t P>(std::integral_constant<std::size_t, P>) {
                standing at{P == 0 ? where.scope : S::scope, "", where.width, input, true};
                if (P + 1 < sizeof...(I)) at.width = to.fresh();
                collect_specs<part_of<S, P>>(at, to);
                input = at.width;
            };
            (collect(std::integral_constant<std::size_t, I>{}), ...);
        }
        (part_indices<S>{});
    } else if constexpr (composite_source<S>) {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            const auto collect = [&]<std::size_t P>(std::integral_constant<std::size_t, P>) {
                standing at = where;
                at.role = role_of_part<S>(P, where.role);
                collect_specs<part_of<S, P>>(at, to);
            };
            (collect(std::integral_constant<std::size_t, I>{}), ...);
        }
        (part_indices<S>{});
    }
}

}  // namespace detail

// The tensors of the tree below S, each before those of its parts; S plays the role `role` in its block.
template <source_policy S>
constexpr auto specs_of(std::string_view role) {
    std::array<tensor_spec, tensor_count<S>()> specs{};
    detail::spec_writer to{specs.data()};
    detail::collect_specs<S>({"", role}, to);
    return specs;
}

// How many tensors of the same kind come before tensor `slot` in the tree below S, chains left out.
template <source_policy S>
constexpr std::size_t ordinal_of(std::size_t slot) {
    const auto specs = specs_of<S>("");
    std::size_t n = 0;
    for (std::size_t i = 0; i < slot; ++i)
        n += specs[i].kind == specs[slot].kind && !specs[i].nested ? 1u : 0u;
    return n;
}

// The number of tensors of one kind in the tree below S, chains left out.
template <source_policy S>
constexpr std::size_t count_of(tensor_kind kind) {
    std::size_t n = 0;
    for (const tensor_spec& spec : specs_of<S>("")) n += spec.kind == kind && !spec.nested ? 1u : 0u;
    return n;
}

TIFFIN_END
