#pragma once

#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/grammar/option.hpp>
#include <tiffin/router/softmax.hpp>

#include <cmath>
#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

// Sigmoid of each logit, top-k, the chosen weights divided by their sum: w_i = s(g_i) / sum_j s(g_j).
// Shapes: x (T, d_model), `router.weight` (experts, d_model), `router.selection_bias` (experts, optional).
// Numerics: weights come from differences of logits, s(g) e^-c = 1 / (e^c + e^(c - g)) with c the largest
//   chosen logit or 0, whichever is less: where all sigmoids underflow the weights are their limit, and
//   never 0 / 0.
// Errors: top_k of 0 or above the experts is errc::option, found by prepare().
// Cost: 2 experts d_model FLOPs per token. Source: docs/layers.md#routers; MoRT Eq. 3-4.
struct sigmoid_topk_renorm {
    using tensors = detail::learned_router_tensors;
    std::size_t top_k = 1;
    static constexpr auto options() noexcept {
        return std::tuple(option{"top_k", &sigmoid_topk_renorm::top_k});
    }

    template <class S>
    TIFFIN_HD static void score(S* values, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) values[i] = sigmoid{}(values[i]);
    }
    template <class S>
    TIFFIN_HD static void weigh(const S* logits, S* weights, std::size_t n) {
        using std::exp;
        S most = logits[0];
        for (std::size_t i = 1; i < n; ++i) most = select(most < logits[i], logits[i], most);
        most = select(most < S(0), most, S(0));
        S total(0);
        for (std::size_t i = 0; i < n; ++i) {
            weights[i] = S(1) / (exp(most) + exp(most - logits[i]));
            total = total + weights[i];
        }
        for (std::size_t i = 0; i < n; ++i) weights[i] = weights[i] / total;
    }
};

TIFFIN_END
