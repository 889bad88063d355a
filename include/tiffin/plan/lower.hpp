// A composition as data: a tree of nodes with the values that its sources hold. Code that walks it is compiled once.
#pragma once

#include <tiffin/grammar/node_kind.hpp>
#include <tiffin/plan/ops_of.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// A source of a composition. It points to the source it was made from, which must outlive it.
struct plan_node {
    static constexpr std::size_t as_given = ~std::size_t{0};

    const detail::node_kind* kind = nullptr;
    const void* source = nullptr;
    double flops = 0;           // of its formula, per feature of its row
    std::size_t top_k = 0;      // of its router, if that has one
    std::size_t delay = 0;      // layers that a delayed part carries over
    const void* ops = nullptr;  // node_ops of the arithmetic that it was lowered for, or null
    std::vector<plan_node> parts{};
    std::size_t repetitions = 0;        // of numbered parts; as_given: as many as tensors are given for
    std::vector<plan_node> repeated{};  // these parts, or the one that is repeated

    [[nodiscard]] constexpr const plan_node& repeated_part(std::size_t i) const noexcept {
        return repeated[repetitions == as_given ? 0 : i];
    }
    // The experts per token that its router chooses among `experts`. The width of a map and the heads of product keys
    // are determined by tensors instead.
    [[nodiscard]] constexpr std::size_t choices_among(std::size_t experts) const noexcept {
        return top_k == every_expert ? experts : top_k;
    }
};

// Whether calls of a block read the residual stream.
constexpr bool reads_residual(const plan_node& block) noexcept {
    return block.kind->reads_residual() || std::ranges::any_of(block.parts, reads_residual) ||
           std::ranges::any_of(block.repeated, reads_residual);
}

// The operations of a node in the arithmetic that it was lowered for.
template <class Numbers>
const ops_for<Numbers>& ops(const plan_node& node) noexcept {
    return *static_cast<const ops_for<Numbers>*>(node.ops);
}

namespace plan_detail {

// Not inlined: what is compiled for a composition is a tree of such calls.
[[gnu::noinline]] constexpr plan_node& add_node(std::vector<plan_node>& to) {
    return to.emplace_back();
}

template <class Numbers, source_policy S>
constexpr void lower_to(plan_node& node, const S& source) {
    node.kind = &detail::kind_of<S>;
    node.source = std::addressof(source);
    if constexpr (!std::same_as<Numbers, void>) node.ops = &ops_of<Numbers, S>;
    if constexpr (requires { source.flops(); }) node.flops = source.flops();
    if constexpr (detail::has_role<S, delay_role>) node.delay = source.layers;
    if constexpr (routing_source<S>)
        if constexpr (requires { source.router.top_k; }) node.top_k = source.router.top_k;
    if constexpr (composite_source<S>) {
        const auto& parts = source.parts();
        static_assert(
            std::is_lvalue_reference_v<decltype(source.parts())> ||
                []<class... Parts>(std::type_identity<std::tuple<Parts...>>) {
                    return (... && std::is_lvalue_reference_v<Parts>);
                }(std::type_identity<std::remove_cvref_t<decltype(parts)>>{}),
            "tiffin: parts() returns copies of the parts: write std::tuple<const Part&...>");
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            (lower_to<Numbers>(add_node(node.parts), std::get<I>(parts)), ...);
        }
        (part_indices<S>{});
    }
    if constexpr (repeating_source<S>) {
        if constexpr (requires { source.repetitions(); }) {
            node.repetitions = source.repetitions();
            for (std::size_t i = 0; i < node.repetitions; ++i)
                lower_to<Numbers>(add_node(node.repeated), source.repeated(i));
        } else {
            node.repetitions = plan_node::as_given;
            lower_to<Numbers>(add_node(node.repeated), source.repeated(0));
        }
    }
}

}  // namespace plan_detail

// The plan nodes of a source and all its parts.
// Errors: none; what is wrong with a composition is found by its type, and with its options by binding.
// Cost: two short vectors per source.
template <class Numbers = void, source_policy S>
constexpr plan_node lower(const S& source) {
    plan_node node;
    plan_detail::lower_to<Numbers>(node, source);
    return node;
}

TIFFIN_END
