// From logits to the experts of a token: the part that all learned routers share.
#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>

#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// An expert chosen for a token, and the weight of its value.
template <class S>
struct choice {
    std::int32_t expert;
    S weight;
};

// Whether a is chosen before b: the larger value; any number before NaN.
template <class S>
TIFFIN_HD constexpr bool exceeds(const S& a, const S& b) noexcept {
    return a > b || (!(b == b) && a == a);
}
// Whether b is not chosen before a.
template <class S>
TIFFIN_HD constexpr bool is_as_good(const S& a, const S& b) noexcept {
    return !exceeds(b, a);
}

// The top_k experts of a token, best first: top-k of score(logits) + bias, weights without the bias.
// Shapes: logits, bias (experts), the latter null where there is none; scratch (2 experts); chosen (top_k).
// Numerics: everything is computed in S, which is double on every backend (the Scalar of `reference`, whose
//   default is double), from the backend's logits: a route does not depend on the precision of a
//   sigmoid. Ties go to the lower index. Every score rises with its logit, so without a bias the logits
//   themselves are compared, and scores that round to the same value are not taken for a tie. NaN is
//   chosen last: the route always has top_k different experts.
// Precondition: top_k <= experts, or every_expert. Cost: top_k experts comparisons; none for every_expert.
template <learned_router Router, class Logit, class S>
TIFFIN_HD void choose(const Router& router, const Logit* logits, std::size_t experts, const Logit* bias,
                      S* scratch, choice<Logit>* chosen) {
    S* const scores = scratch;
    S* const seen = scratch + experts;
    for (std::size_t e = 0; e < experts; ++e) scores[e] = S(logits[e]);
    router.score(scores, experts);
    for (std::size_t e = 0; e < experts; ++e) seen[e] = bias ? scores[e] + S(bias[e]) : S(logits[e]);
    const std::size_t count = choices_among(router, experts);
    if (router.top_k == every_expert)
        for (std::size_t e = 0; e < experts; ++e) chosen[e].expert = static_cast<std::int32_t>(e);
    else
        for (std::size_t e = 0, found = 0; e < experts; ++e) {
            std::size_t at = found;
            while (at > 0 && exceeds(seen[e], seen[chosen[at - 1].expert])) --at;
            if (at == count) continue;
            if (found < count) ++found;
            for (std::size_t i = found - 1; i > at; --i) chosen[i].expert = chosen[i - 1].expert;
            chosen[at].expert = static_cast<std::int32_t>(e);
        }
    S* const weights = seen;  // the compared scores are not needed any more
    for (std::size_t i = 0; i < count; ++i) weights[i] = scores[chosen[i].expert];
    S* const chosen_logits = scores;
    for (std::size_t i = 0; i < count; ++i) chosen_logits[i] = S(logits[chosen[i].expert]);
    router.weigh(chosen_logits, weights, count);
    for (std::size_t i = 0; i < count; ++i) chosen[i].weight = static_cast<Logit>(weights[i]);
}

namespace detail {

// The tensors of learned routers: a weight (experts, d_model), and a bias that affects the choice only.
using learned_router_tensors = tensor_list<logits<"router.weight">, selection_bias<"router.selection_bias">>;

}  // namespace detail

TIFFIN_END
