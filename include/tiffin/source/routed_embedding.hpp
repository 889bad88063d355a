#pragma once

#include <tiffin/grammar/tree.hpp>
#include <tiffin/router/sigmoid.hpp>

#include <string_view>

TIFFIN_BEGIN

// Table rows chosen and mixed by a router: z = sum over chosen i of w_i E_i[t], rows of several token tables; with
// chosen_rows, z = sum of w_i V[i], rows of one table.
// Shapes: t (T), Rows (experts, vocab, width), by default `modulators.weight`, or chosen_rows
//   (rows, width); the router's tensors, z (T, width).
// Numerics: summed best expert first. Errors: an id outside [0, vocab) is errc::token_id.
// Cost: top_k rows and 2 top_k width FLOPs per token, and the router's.
// Source: MoRT Eq. 3-5; docs/layers.md#mort, #product-keys.
template <router_policy Router = sigmoid_topk_renorm, tensor_declaration Rows = pool<"modulators.weight">>
struct routed_embedding {
    using rows = Rows;
    using source_role = routed_role;
    using formula_is = sum_of_values<routed_embedding>;
    using tensors = joined_tensors<tensor_list<rows>, typename Router::tensors>;
    static constexpr std::string_view name = "";

    Router router{};

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[rows{}];
    }
};

TIFFIN_END
