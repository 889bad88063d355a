// The cost of a block whose tensors are given, whatever their sizes.
#pragma once

#include <tiffin/analysis/cost.hpp>
#include <tiffin/bind/bind_weights.hpp>
#include <tiffin/error.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace detail {

// `share`: the fraction of the tokens that use this node.
inline void add_bound(const plan_node& node, const bound_node& bound, double share, block_cost& total) {
    const node_kind& kind = *node.kind;
    for (std::size_t i = 0; i < kind.tensors.size(); ++i) {
        const node_tensor& t = kind.tensors[i];
        if (!is_stored(t.kind) || !bound.tensors[i].is_given()) continue;
        sized_tensor sized{t.kind,
                           presence::required,
                           bound.tensors[i].shape,
                           {},
                           share,
                           bound.choices != 0 ? bound.choices : 1};
        for (std::size_t a = 0; a < t.rank; ++a) sized.axes[a] = t.axes[a];
        add_tensor(sized, true, total);
    }
    const std::size_t parts = node.parts.size(), repeated = bound.parts.size() - parts;
    const auto choices = static_cast<double>(bound.choices);
    double flops = node.flops;
    if (kind.role == node_role::mixture) flops += 2 * choices;
    total.elementwise_flops_per_token += flops * static_cast<double>(bound.width) * share;
    for (std::size_t i = 0; i < parts; ++i) add_bound(node.parts[i], bound.parts[i], share, total);
    if (repeated == 0) return;
    const double of_one = kind.router == router_kind::none ? 1 : choices / static_cast<double>(repeated);
    for (std::size_t e = 0; e < repeated; ++e)
        add_bound(node.repeated_part(e), bound.parts[parts + e], share * of_one, total);
}

}  // namespace detail

// The cost of a block with these tensors; optional ones count where they are given.
// Errors: those of bind_weights(). Cost: no tensor is read but maps and ranges of ids.
//
//     cost_of(stem{}, weights).or_throw().table_parameters
inline result<block_cost> cost_of(const plan_node& block, const weights& given) {
    const auto bound = detail::bind_plan(block, given, {});
    if (!bound) return bound.failure();
    block_cost total;
    detail::add_bound(block, bound->tree, 1, total);
    return total;
}
template <block_policy Block>
result<block_cost> cost_of(const Block& block, const weights& given) {
    return cost_of(lower(block), given);
}

TIFFIN_END
