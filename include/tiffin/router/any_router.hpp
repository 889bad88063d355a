// A learned router whose order is known only at run time, as in a layer file.
#pragma once

#include <tiffin/router/sigmoid.hpp>
#include <tiffin/router/softmax.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

TIFFIN_BEGIN

enum class router_order : std::uint8_t {
    softmax_topk,
    softmax_topk_renorm,
    topk_softmax,
    sigmoid_topk_renorm
};

// In the order of `router_order`.
inline constexpr std::array<std::string_view, 4> router_orders{
    {"softmax_topk", "softmax_topk_renorm", "topk_softmax", "sigmoid_topk_renorm"}};

constexpr std::optional<router_order> router_order_named(std::string_view name) noexcept {
    for (std::size_t i = 0; i < router_orders.size(); ++i)
        if (router_orders[i] == name) return static_cast<router_order>(i);
    return std::nullopt;
}

// One of the four orders. Numerics, cost: those of the order chosen, and a switch per token.
struct any_router {
    using tensors = detail::learned_router_tensors;
    std::size_t top_k = 1;
    router_order order = router_order::softmax_topk;

    template <class S>
    TIFFIN_HD void score(S* values, std::size_t n) const {
        switch (order) {
            case router_order::softmax_topk:
            case router_order::softmax_topk_renorm: return softmax_topk::score(values, n);
            case router_order::topk_softmax: return topk_softmax::score(values, n);
            case router_order::sigmoid_topk_renorm: return sigmoid_topk_renorm::score(values, n);
        }
    }
    template <class S>
    TIFFIN_HD void weigh(const S* logits, S* weights, std::size_t n) const {
        switch (order) {
            case router_order::softmax_topk: return softmax_topk::weigh(logits, weights, n);
            case router_order::softmax_topk_renorm: return softmax_topk_renorm::weigh(logits, weights, n);
            case router_order::topk_softmax: return topk_softmax::weigh(logits, weights, n);
            case router_order::sigmoid_topk_renorm: return sigmoid_topk_renorm::weigh(logits, weights, n);
        }
    }
};

TIFFIN_END
