// The choice of table rows for a token: the part that all row routers share.
#pragma once

#include <tiffin/router/selection.hpp>

#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// One of the best of several values, and its index.
template <class S>
struct ranked {
    S value;
    std::int32_t number;
};

// Inserts a value among the best `most`, best first; equal values by ascending index, NaN last.
template <class S>
TIFFIN_HD void rank_in(const ranked<S>& one, std::size_t most, std::size_t& count, ranked<S>* best) {
    std::size_t at = count;
    while (at > 0 && (exceeds(one.value, best[at - 1].value) ||
                      (one.number < best[at - 1].number && !exceeds(best[at - 1].value, one.value))))
        --at;
    if (at == most) return;
    if (count < most) ++count;
    for (std::size_t i = count - 1; i > at; --i) best[i] = best[i - 1];
    best[at] = one;
}

// The choices of a token by product keys, head by head. Shapes: scores (2 heads, keys), scratch (3 top_k),
// weights (top_k), chosen (heads, top_k). Numerics: in S, which is double on every backend (see choose()).
template <key_router Router, class Score, class S>
TIFFIN_HD void choose_rows(const Router& router, const Score* scores, std::size_t heads, std::size_t keys,
                           ranked<S>* scratch, S* weights, choice<Score>* chosen) {
    for (std::size_t h = 0; h < heads; ++h)
        router.pick(scores + h * 2 * keys, keys, scratch, weights, chosen + h * router.top_k);
}

// Chooses the rows [begin, end), each with weight 1; the remaining choices are row -1.
template <class Score>
TIFFIN_HD void take_range(std::int32_t begin, std::int32_t end, std::size_t choices, choice<Score>* chosen) {
    for (std::size_t i = 0; i < choices; ++i) {
        const std::int32_t row = begin + static_cast<std::int32_t>(i);
        chosen[i] = row < end ? choice<Score>{row, Score(1)} : choice<Score>{-1, Score(0)};
    }
}

// The number of valid choices of a token: the remaining ones are row -1.
template <class Score>
TIFFIN_HD std::size_t rows_chosen(const choice<Score>* chosen, std::size_t choices) {
    std::size_t n = 0;
    while (n < choices && chosen[n].expert >= 0) ++n;
    return n;
}

// Reweights the chosen rows by the products of their keys with the router's input. Shapes: products (n), scratch
// (2 n), chosen (n).
template <gating_router Router, class Score, class S>
TIFFIN_HD void gate_rows(const Router& router, const Score* products, std::size_t n, S* scratch,
                         choice<Score>* chosen) {
    S* const weights = scratch + n;
    for (std::size_t i = 0; i < n; ++i) {
        scratch[i] = S(products[i]);
        weights[i] = S(chosen[i].weight);
    }
    router.gate(scratch, weights, n);
    for (std::size_t i = 0; i < n; ++i) chosen[i].weight = static_cast<Score>(weights[i]);
}

TIFFIN_END
