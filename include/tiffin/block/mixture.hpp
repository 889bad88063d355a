#pragma once

#include <tiffin/block/ffn.hpp>

#include <concepts>
#include <cstddef>
#include <string_view>
#include <tuple>

TIFFIN_BEGIN

// A router by itself: its tensors, and no value. What a mixture routes by.
template <router_policy Router>
struct route_of {
    using source_role = routed_role;
    using tensors = typename Router::tensors;
    static constexpr std::string_view name = "";

    Router router{};

    template <class Place>
    TIFFIN_HD double operator()(const Place& /*at*/) const {
        return 0;
    }
};

// Experts chosen for each token: y = sum over choices (e, w) of w Expert_e(x, t), and Shared(x, t) with
// weight 1 where there is one.
// Shapes: x, y (T, d_model); the router's tensors; those of expert e are called `experts.<e>.<name>`, the
//   shared block's `shared.<name>`. As many experts as are given.
// Numerics: the shared block first, then the experts by ascending number, whatever the weights: a token's
//   output does not depend on the other tokens' routes.
// Errors: a router that knows another number of experts is errc::shape, a top_k above it errc::option.
// Cost: tokens are grouped by expert: a call reads each chosen expert once, and no other.
// Source: SPEC 2.3; with token embeddings in the experts, the mixture of STEM experts.
template <class Router, class Expert, class Shared = none>
struct mixture {
    static_assert(router_policy<Router>,
                  "tiffin: mixture<Router, Expert>: the first argument is not a router; write "
                  "mixture<softmax_topk, swiglu>");
    static_assert(block_policy<Expert> && (block_policy<Shared> || std::same_as<Shared, none>),
                  "tiffin: mixture<Router, Expert, Shared>: an expert is not a block");

    Router router{};
    Expert expert{};
    Shared shared{};

    static constexpr bool has_shared = !std::same_as<Shared, none>;

    template <class Shape, class Prefix, class Visit>
    constexpr void visit_parts(const Shape& sizes, const Prefix& prefix, double share,
                               const Visit& visit) const {
        visit(route_of<Router>{router}, sizes, prefix, share);
        std::size_t chosen = sizes.choices;
        if constexpr (learned_router<Router>) chosen = router.top_k;
        const double used = share * static_cast<double>(chosen) / static_cast<double>(sizes.experts);
        for (std::size_t e = 0; e < sizes.experts; ++e)
            visit(expert, sizes.part(0), detail::numbered(prefix, "experts.", e), used);
        if constexpr (has_shared) visit(shared, sizes.part(1), prefix + "shared.", share);
    }
    constexpr auto blocks() const noexcept {
        if constexpr (has_shared)
            return std::tie(expert, shared);
        else
            return std::tie(expert);
    }
};

TIFFIN_END
