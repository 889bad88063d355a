#pragma once

#include <tiffin/grammar/parts.hpp>
#include <tiffin/source/none.hpp>

#include <concepts>
#include <cstddef>
#include <string_view>
#include <tuple>

TIFFIN_BEGIN

// Experts chosen for each token: y = sum over choices (e, w) of w Expert_e(x, t), and Shared(x, t) with
// weight 1 where there is one.
// Shapes: x, y (T, d_model); the router's tensors; those of expert e are named `experts.<e>.<name>`, those of the
//   shared block `shared.<name>`. As many experts as are given.
// Numerics: summed shared block first, then experts by ascending index, whatever the weights: a token's
//   output does not depend on the other tokens' routes.
// Errors: a router for another number of experts is errc::shape, a top_k above it errc::option.
// Cost: tokens are grouped by expert: a call reads each chosen expert once, and no other.
// Source: docs/layers.md#moe; with token embeddings in the experts, the mixture of STEM experts.
template <class Router, class Expert, class Shared = none>
struct mixture {
    static_assert(router_policy<Router>,
                  "tiffin: mixture<Router, Expert>: the first argument is not a router; write "
                  "mixture<softmax_topk, swiglu>");
    static_assert(!row_router<Router>,
                  "tiffin: mixture<Router, Expert>: the router chooses rows of a table and no experts; write "
                  "routed_embedding<Router, chosen_rows<...>>");
    static_assert(block_policy<Expert> && (block_policy<Shared> || std::same_as<Shared, none>),
                  "tiffin: mixture<Router, Expert, Shared>: an expert is not a block");

    using source_role = mixture_role;
    using tensors = joined_tensors<tensor_list<computed>, typename Router::tensors>;
    static constexpr std::string_view name = "";
    static constexpr bool has_shared = !std::same_as<Shared, none>;

    Router router{};
    Expert expert{};
    Shared shared{};

    static constexpr part_scope scope(std::size_t) noexcept { return {"shared"}; }
    static constexpr part_scope repeated_scope(std::size_t part) noexcept { return {"experts", part}; }
    [[nodiscard]] constexpr const Expert& repeated(std::size_t) const noexcept { return expert; }
    constexpr auto parts() const noexcept {
        if constexpr (has_shared)
            return std::tie(shared);
        else
            return std::tuple<>();
    }
    static constexpr double flops() noexcept { return has_shared ? 1 : 0; }
};

TIFFIN_END
