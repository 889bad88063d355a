// Creates the training class of a plan node, by its role.
#pragma once

#include <tiffin/train/chain_rows.hpp>
#include <tiffin/train/formula_rows.hpp>
#include <tiffin/train/mixture_rows.hpp>

#include <memory>

TIFFIN_BEGIN

namespace train_detail {

template <class M>
std::unique_ptr<const trained_rows<typename M::number>> make_trained_rows(
    const plan_node& node, const bound_node& bound, const engine_detail::source_sizes& sizes,
    training_preparation<typename M::number>& how) {
    using enum detail::node_role;
    switch (node.kind->role) {
        case chain: return std::make_unique<const chain_rows<M>>(node, bound, sizes, how);
        case mixture: return std::make_unique<const mixture_rows<M>>(node, bound, sizes, how);
        case residual: return std::make_unique<const residual_rows<M>>(node, bound, sizes, how);
        case delay: return std::make_unique<const delayed_rows<M>>(node, bound, sizes, how);
        case repeated: return std::make_unique<const repeated_rows<M>>(node, bound, sizes, how);
        default: return std::make_unique<const formula_rows<M>>(node, bound, sizes, how);
    }
}

}  // namespace train_detail

TIFFIN_END
