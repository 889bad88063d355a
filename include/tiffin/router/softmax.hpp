#pragma once

#include <tiffin/grammar/option.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/scalar.hpp>

#include <cmath>
#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

namespace detail {

// values <- exp(values - max) / sum, summed by ascending index.
template <class S>
TIFFIN_HD void softmax(S* values, std::size_t n) {
    using std::exp;
    S most = values[0];
    for (std::size_t i = 1; i < n; ++i) most = select(most < values[i], values[i], most);
    S total(0);
    for (std::size_t i = 0; i < n; ++i) {
        values[i] = exp(values[i] - most);
        total = total + values[i];
    }
    for (std::size_t i = 0; i < n; ++i) values[i] = values[i] / total;
}

// to <- softmax(from).
template <class S>
TIFFIN_HD void softmax(const S* from, S* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i] = from[i];
    softmax(to, n);
}

}  // namespace detail

// Softmax over all experts, then top-k, not renormalised: s = softmax(x W^T), weights s_e.
// Shapes: x (T, d_model), `router.weight` (experts, d_model), `router.selection_bias` (experts, optional).
// Numerics: the largest logit is subtracted before exp. Errors: top_k of 0 or above the experts is
//   errc::option, found by prepare().
// Cost: 2 experts d_model FLOPs per token. Source: docs/layers.md#routers; StructMoE's router.
struct softmax_topk {
    using tensors = detail::learned_router_tensors;
    std::size_t top_k = 1;
    static constexpr auto options() noexcept { return std::tuple(option{"top_k", &softmax_topk::top_k}); }

    template <class S>
    TIFFIN_HD static void score(S* values, std::size_t n) {
        detail::softmax(values, n);
    }
    template <class S>
    TIFFIN_HD static void weigh(const S* /*logits*/, S* /*weights*/, std::size_t /*n*/) {}
};

// Softmax over all experts, all of which are used: s = softmax(x W^T), in index order.
// Shapes: x (T, d_model), `router.weight` (experts, d_model).
// Source: mixtures of lookup experts, docs/layers.md#mole.
struct softmax_all : softmax_topk {
    using tensors = tensor_list<logits<"router.weight">>;
    constexpr softmax_all() noexcept : softmax_topk{every_expert} {}
    static constexpr std::tuple<> options() noexcept { return {}; }
};

// The same with the chosen weights divided by their sum, which is the softmax over the chosen.
// Numerics: from differences of logits: experts chosen because of a bias get their weights even where their
//   probabilities over all experts underflow.
struct softmax_topk_renorm : softmax_topk {
    template <class S>
    TIFFIN_HD static void weigh(const S* logits, S* weights, std::size_t n) {
        detail::softmax(logits, weights, n);
    }
};

// Top-k of the logits, then softmax over the chosen.
struct topk_softmax {
    using tensors = detail::learned_router_tensors;
    std::size_t top_k = 1;
    static constexpr auto options() noexcept { return std::tuple(option{"top_k", &topk_softmax::top_k}); }

    template <class S>
    TIFFIN_HD static void score(S* /*values*/, std::size_t /*n*/) {}
    template <class S>
    TIFFIN_HD static void weigh(const S* logits, S* weights, std::size_t n) {
        detail::softmax(logits, weights, n);
    }
};

TIFFIN_END
