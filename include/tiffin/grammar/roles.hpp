// What a source must have for the role that it claims (see concepts.hpp), checked at compile time with messages.
#pragma once

#include <tiffin/grammar/arguments.hpp>
#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>

#include <string_view>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace detail {

template <class... Tensors>
constexpr bool any_routed(tensor_list<Tensors...>) {
    return (... || (Tensors::kind >= tensor_kind::logits && is_stored(Tensors::kind)));
}
template <class... Tensors>
constexpr bool has_kind(tensor_list<Tensors...>, [[maybe_unused]] tensor_kind kind) {
    return (... || (Tensors::kind == kind));
}
template <class First, class... Tensors>
constexpr bool comes_first(tensor_list<Tensors...> own) {
    if constexpr (decltype(own)::template contains<First>)
        return decltype(own)::template index_of<First>() == 0;
    else
        return false;
}
template <class... Tensors>
constexpr bool all_in(tensor_list<Tensors...>, auto own) {
    return (... && decltype(own)::template contains<Tensors>);
}

template <class S>
using router_of = std::remove_cvref_t<decltype(std::declval<const S&>().router)>;

template <class S>
concept has_router = requires {
    requires router_policy<router_of<S>>;
};

template <class S, class own>
constexpr void check_router() {
    if constexpr (has_router<S>)
        if constexpr (!is_argument<router_of<S>>) {
            using router = router_of<S>;
            static_assert(
                learned_router<router> || !has_kind(typename router::tensors{}, tensor_kind::logits),
                "tiffin: a router that reads logits has top_k, score(values, n) and weigh(logits, "
                "weights, n), the latter two as templates over the number, as softmax_topk has");
            static_assert(
                learned_router<router> || row_router<router> ||
                    has_kind(typename router::tensors{}, tensor_kind::route_map),
                "tiffin: a router reads logits, as softmax_topk does, or a route_map, as hash does, or "
                "chooses rows, as "
                "product_keys does");
            static_assert(!row_router<router> || !has_kind(own{}, tensor_kind::low_rank_in),
                          "tiffin: a router of rows chooses among rows, chosen_rows or those of a pool, and "
                          "not among the "
                          "matrices of a bank");
            static_assert(all_in(typename router::tensors{}, own{}),
                          "tiffin: a source of routed_role does not declare the tensors of its router: write "
                          "joined_tensors<tensor_list<...>, typename Router::tensors>");
        }
}

// Checks what a role requires of a source whose own tensors are `own`.
template <class S, class own>
constexpr void check_role() {
    if constexpr (has_role<S, chain_role>) {
        static_assert(composite_source<S> && comes_first<computed>(own{}),
                      "tiffin: a source of chain_role has parts() and declares the tensor `computed`, first "
                      "of all: its last part's row; see through");
    } else if constexpr (has_role<S, row_norm_role>) {
        static_assert(
            composite_source<S> &&
                requires(const S& s) { requires norm_policy<std::remove_cvref_t<decltype(s.norm)>>; },
            "tiffin: a source of row_norm_role has one part and a member `norm` that is a norm, as normed "
            "has");
        static_assert(comes_first<row_scale>(own{}) && decltype(own{})::template contains<computed>,
                      "tiffin: a source of row_norm_role declares the tensors `row_scale`, first of all, and "
                      "`computed`, its part's row");
    } else if constexpr (has_role<S, row_dot_role>) {
        static_assert(
            composite_source<S> && comes_first<row_scale>(own{}) &&
                requires(const S& s, double v) { s.scale(v, v); },
            "tiffin: a source of row_dot_role has three parts, scale(dot, width), and declares the tensor "
            "`row_scale`, first of all; see dot_gated");
    } else if constexpr (has_role<S, routed_role>) {
        static_assert(leaf_source<S> && has_router<S>,
                      "tiffin: a source of routed_role has a list of tensors, a formula over them, and a "
                      "member `router` that is a router, as routed_low_rank has");
        check_router<S, own>();
    } else if constexpr (has_role<S, row_role>) {
        static_assert(composite_source<S> && comes_first<computed>(own{}),
                      "tiffin: a source of a row role has parts() and declares the tensor `computed`, first "
                      "of all: its row");
        if constexpr (has_role<S, mixture_role>) check_router<S, own>();
    } else {
        static_assert(!any_routed(own{}),
                      "tiffin: a source declares tensors that a router chooses among (logits, route_map, "
                      "low_rank_in, pool, ...) and no role: write `using source_role = routed_role` and a "
                      "member `router`");
    }
}

}  // namespace detail

TIFFIN_END
