#pragma once

#include <tiffin/grammar/tree.hpp>
#include <tiffin/router/softmax.hpp>

#include <string_view>

TIFFIN_BEGIN

// Low-rank matrices chosen by a router: z = sum over chosen l of s_l (x A_l^T) B_l^T.
// Shapes: x (T, input), `lore_a.weight` (experts, rank, input), `lore_b.weight` (experts, width, rank), the
//   router's tensors, z (T, width). Any rank from 1 up, any top_k up to the experts.
// Numerics: the rank-r intermediates x A_l^T of a token are stored in f32. They are summed r ascending, then weighted
//   and summed best expert first. A_l B_l is never formed.
// Cost: 2 top_k rank (input + width) FLOPs per token and the router's.
// Source: StructMoE Eq. 5; docs/layers.md#structmoe.
template <router_policy Router = softmax_topk>
struct routed_low_rank {
    using in = low_rank_in<"lore_a.weight">;
    using out = low_rank_out<"lore_b.weight">;
    using source_role = routed_role;
    using formula_is = sum_of_values<routed_low_rank>;
    using tensors = joined_tensors<tensor_list<in, out>, typename Router::tensors>;
    static constexpr std::string_view name = "";  // its tensors are named without an owner

    Router router{};

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[out{}];
    }
};

TIFFIN_END
