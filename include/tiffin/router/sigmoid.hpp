#pragma once

#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/router/softmax.hpp>

#include <cstddef>

TIFFIN_BEGIN

// Sigmoid of each logit, top-k, the chosen weights divided by their sum: w_i = s(g_i) / sum_j s(g_j).
// Shapes: x (T, d_model), `router.weight` (experts, d_model), `router.selection_bias` (experts, optional).
// Errors: top_k of 0 or above the experts is errc::option, found by prepare().
// Cost: 2 experts d_model FLOPs a token. Source: SPEC 2.3; MoRT Eq. 3-4.
struct sigmoid_topk_renorm {
    using tensors = detail::learned_router_tensors;
    std::size_t top_k = 1;

    template <class S>
    TIFFIN_HD static void score(S* values, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) values[i] = sigmoid{}(values[i]);
    }
    template <class S>
    TIFFIN_HD static void weigh(S* chosen, std::size_t n) {
        detail::divide_by_sum(chosen, n);
    }
};

TIFFIN_END
