// The type of a source as data, so that code that walks compositions is compiled once, not per composition.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/grammar/arguments.hpp>
#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/roles.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>
#include <tiffin/grammar/tree.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

// The prefix of the names of a part's tensors: "base.", or "experts.3." where it has a number.
struct part_scope {
    static constexpr std::size_t no_number = ~std::size_t{0};

    std::string_view name{};
    std::size_t number = no_number;

    friend constexpr bool operator==(const part_scope&, const part_scope&) = default;
};

namespace detail {

// A tensor that a source declares.
struct node_tensor {
    std::string_view name;
    tensor_kind kind;
    presence needed;
    std::array<axis, 3> axes{};
    std::size_t rank = 0;
    double neutral = 0;  // of vectors and scalars: the value without effect
};

// The role of a source (see concepts.hpp); `formula` if it has none.
enum class node_role : std::uint8_t {
    formula,
    chain,
    row_norm,
    row_dot,
    routed,
    row,
    mixture,
    residual,
    delay,
    repeated
};

// How the router of a source chooses: from logits, by a map of token ids, by keys, or by row ranges of token ids.
enum class router_kind : std::uint8_t { none, learned, map, keys, ranges };

struct node_kind;

struct node_part {
    const node_kind* kind;
    part_scope scope;
    std::string_view role;
    bool has_role;  // else it has the role of the whole
};

struct node_kind {
    node_role role = node_role::formula;
    router_kind router = router_kind::none;
    bool has_name = false;  // a leaf without a name is named after its role
    bool own_width = false;
    bool sums = false;         // no formula: the sum of its tensors and parts
    bool keeps_width = false;  // inner rows of a chain are as wide as its input
    std::string_view name{};
    std::string_view inner_width{};    // the name of the width between two parts of a chain
    std::string_view repeated_name{};  // the name of the numbered parts, "experts"
    std::size_t recorded_first = 0;    // the part whose routes a call records before those of the others
    std::span<const node_tensor> tensors{};
    std::span<const node_part> parts{};
    part_scope (*scope)(std::size_t part) = nullptr;  // if its parts are named
    // For placeholders of a text: the source itself, its policy, its gate of rows (see arguments.hpp).
    argument_use argument{}, policy{}, row_gate{};
    status (*check)(const void* source) =
        nullptr;  // checks options that only the source itself can check; may be null

    [[nodiscard]] constexpr bool has(tensor_kind kind) const noexcept {
        return std::any_of(tensors.begin(), tensors.end(), [&](const auto& t) { return t.kind == kind; });
    }
    // Whether it reads the residual stream itself.
    [[nodiscard]] constexpr bool reads_residual() const noexcept {
        return role == node_role::residual || has(tensor_kind::residual_row);
    }
    // Whether it has tensors that a router chooses among.
    [[nodiscard]] constexpr bool is_routed() const noexcept {
        return std::any_of(tensors.begin(), tensors.end(),
                           [](const auto& t) { return t.kind >= tensor_kind::logits && is_stored(t.kind); });
    }
    [[nodiscard]] constexpr std::string_view owner(std::string_view its_role) const noexcept {
        return has_name ? name : its_role;
    }
};

template <class S>
constexpr node_role role_of() noexcept {
    if constexpr (has_role<S, chain_role>) return node_role::chain;
    if constexpr (has_role<S, row_norm_role>) return node_role::row_norm;
    if constexpr (has_role<S, row_dot_role>) return node_role::row_dot;
    if constexpr (has_role<S, routed_role>) return node_role::routed;
    if constexpr (has_role<S, mixture_role>) return node_role::mixture;
    if constexpr (has_role<S, residual_role>) return node_role::residual;
    if constexpr (has_role<S, delay_role>) return node_role::delay;
    if constexpr (has_role<S, repeated_role>) return node_role::repeated;
    return has_role<S, row_role> ? node_role::row : node_role::formula;
}

template <class S>
constexpr router_kind router_kind_of() noexcept {
    if constexpr (!routing_source<S>)
        return router_kind::none;
    else if constexpr (learned_router<router_of<S>>)
        return router_kind::learned;
    else if constexpr (key_router<router_of<S>>)
        return router_kind::keys;
    else
        return row_router<router_of<S>> ? router_kind::ranges : router_kind::map;
}

// The argument of a text that the policy of a source is a placeholder for, if it is one.
template <class S>
constexpr argument_use policy_use_of() noexcept {
    if constexpr (routing_source<S>)
        return use_of<router_of<S>>();
    else if constexpr (has_role<S, row_norm_role>)
        return use_of<std::remove_cvref_t<decltype(std::declval<const S&>().norm)>>();
    else if constexpr (requires(const S& s) { s.gate; } && has_role<S, row_dot_role>)
        return use_of<std::remove_cvref_t<decltype(std::declval<const S&>().gate)>>();
    else if constexpr (is_policy_of_values<S> && requires(const S& s) { s.formula(); })
        return use_of<std::remove_cvref_t<decltype(std::declval<const S&>().formula())>>();
    else
        return {};
}
template <class S>
constexpr argument_use row_gate_use_of() noexcept {
    if constexpr (requires(const S& s) { s.router.gate_of_rows; })
        return use_of<std::remove_cvref_t<decltype(std::declval<const S&>().router.gate_of_rows)>>();
    else
        return {};
}

template <class S, class Tensor>
constexpr node_tensor node_tensor_of() noexcept {
    node_tensor t{Tensor::name, Tensor::kind, Tensor::needed, {}, Tensor::axes.size()};
    for (std::size_t i = 0; i != Tensor::axes.size(); ++i) t.axes[i] = Tensor::axes[i];
    if (t.needed == presence::optional) return t;
    t.neutral = 1;
    // A norm may define another neutral weight: `static constexpr double neutral_weight`.
    if constexpr (requires { std::remove_cvref_t<decltype(S::norm)>::neutral_weight; })
        t.neutral = std::remove_cvref_t<decltype(S::norm)>::neutral_weight;
    return t;
}

template <class S>
struct kind_of_source {
    template <class... Tensors>
    static constexpr std::array<node_tensor, sizeof...(Tensors)> list(tensor_list<Tensors...>) noexcept {
        return {{node_tensor_of<S, Tensors>()...}};
    }
    // A source may name its parts, `static constexpr part_scope scope(std::size_t part)`, and give them roles of
    // their own, `gate_proj` and `up_proj`. By default they have its role; in a chain, none.
    template <std::size_t I>
    static constexpr node_part part() noexcept {
        node_part of{&kind_of_source<part_of<S, I>>::kind, {}, {}, chained_source<S>};
        if constexpr (requires { S::scope(I); }) of.scope = S::scope(I);
        if constexpr (requires { S::roles[I]; }) {
            of.role = S::roles[I];
            of.has_role = true;
        }
        return of;
    }
    static constexpr auto list_parts() noexcept {
        if constexpr (composite_source<S>) return []<std::size_t... I>(std::index_sequence<I...>) {
                return std::array<node_part, sizeof...(I)>{{part<I>()...}};
            }
        (part_indices<S>{});
        else return std::array<node_part, 0>{};
    }
    static constexpr node_kind describe() noexcept {
        check_role<S, own_tensors_of<S>>();
        node_kind k;
        k.role = role_of<S>();
        k.router = router_kind_of<S>();
        if constexpr (requires { std::string_view{S::name}; }) {
            k.name = S::name;
            k.has_name = true;
        }
        if constexpr (requires { requires S::own_width; }) k.own_width = true;
        k.keeps_width = requires {
            S::keeps_width;
        };
        k.sums = is_sum_of_values<S>;
        k.inner_width = "width";
        if constexpr (requires { std::string_view{S::inner_width}; }) k.inner_width = S::inner_width;
        if constexpr (repeating_source<S>) k.repeated_name = S::repeated_scope(0).name;
        if constexpr (requires { S::recorded_first; }) k.recorded_first = S::recorded_first;
        k.tensors = tensors;
        k.parts = parts;
        if constexpr (requires { S::scope(0); }) k.scope = S::scope;
        k.argument = use_of<S>();
        k.policy = policy_use_of<S>();
        // In a plan made from a text, `source` points to the policy instead of the source.
        static_assert(
            !policy_use_of<S>() || is_policy_of_values<S> || is_sum_of_values<S> || has_role<S, row_role>,
            "tiffin: a source whose policy a text names has no formula of its own; list it once for "
            "each policy");
        static_assert(
            !policy_use_of<S>() || !requires(const S& s) { s.check(); },
            "tiffin: a source whose policy a text names has no check(); list it once for each policy");
        k.row_gate = row_gate_use_of<S>();
        if constexpr (requires(const S& s) {
                          { s.check() } -> std::same_as<status>;
                      })
            k.check = [](const void* source) { return static_cast<const S*>(source)->check(); };
        return k;
    }
    static constexpr auto tensors = list(own_tensors_of<S>{});
    static constexpr auto parts = list_parts();
    static constexpr node_kind kind = describe();
};

template <source_policy S>
inline constexpr const node_kind& kind_of = kind_of_source<S>::kind;

}  // namespace detail

TIFFIN_END
