#pragma once

#include <tiffin/fixed_string.hpp>
#include <tiffin/router/selection.hpp>

#include <cstddef>

TIFFIN_BEGIN

// All experts, each weighted by its logit: w = x W^T. A matrix per token, M[t] (experts, width), is then
// a pool: sum_e w_e M_e[t] = (x W^T) M[t].
// Shapes: x (T, input), Weight (experts, input), by default `router.weight`.
// Numerics: logits as the backend computes them, not rounded again.
// Cost: 2 experts input FLOPs per token. Source: docs/layers.md#routers; DeepEmbed.
template <fixed_string Weight = "router.weight">
struct linear_all {
    using tensors = tensor_list<logits<Weight>>;
    static constexpr std::size_t top_k = every_expert;

    template <class S>
    TIFFIN_HD static void score(S* /*values*/, std::size_t /*n*/) {}
    template <class S>
    TIFFIN_HD static void weigh(const S* /*logits*/, S* /*weights*/, std::size_t /*n*/) {}
};

TIFFIN_END
