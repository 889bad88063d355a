// From named tensors to a block's: what prepare() does first.
#pragma once

#include <tiffin/bind/binder.hpp>

#include <cstddef>
#include <utility>

TIFFIN_BEGIN

namespace detail {

// The node whose routes a call records: the outermost one that routes, in the order in which parts are asked.
inline bound_node* recorded_node(bound_node& node) {
    if (node.choices != 0) return &node;
    for (std::size_t i = 0; i < node.parts.size(); ++i) {
        const std::size_t part = i == 0 ? node.recorded_first : i - (i <= node.recorded_first ? 1 : 0);
        if (bound_node* found = recorded_node(node.parts[part])) return found;
    }
    return nullptr;
}

}  // namespace detail

// Binds given tensors to a block's. Errors: errc::missing_tensor, unused_tensor, duplicate_tensor,
// dtype, shape, value, option; `where` is the tensor's name.
template <block_policy Block>
result<binding> bind_weights(const Block& block, const weights& given, const preparation& how = {}) {
    if (const status s = detail::check_kept(how.formats); !s) return s.failure();
    if (const status s = detail::check_given(given); !s) return s.failure();
    detail::binder from(given, how.formats);
    binding bound;
    const detail::bind_place whole = from.outermost<Block>();
    if (const status s = from.bind(block, whole, bound.tree); !s) return s.failure();
    if (const status s = from.settle(bound.tree); !s) return s.failure();
    if (const status s = from.check_all_used(); !s) return s.failure();
    bound.needs = std::move(from.needs());
    bound.needs.d_model = from.sizes()[whole.d_model];
    bound.needs.outputs = bound.tree.width;
    bound.needs.d_ff = from.sizes().first("d_ff") != 0 ? from.sizes().first("d_ff") : bound.tree.width;
    bound.how = how;
    if (bound_node* const recorded = detail::recorded_node(bound.tree)) {
        recorded->recorded = true;
        bound.needs.choices = recorded->choices;
    }
    return bound;
}

TIFFIN_END
