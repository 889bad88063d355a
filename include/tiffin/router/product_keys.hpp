#pragma once

#include <tiffin/activation/relu.hpp>
#include <tiffin/grammar/option.hpp>
#include <tiffin/router/row_choice.hpp>
#include <tiffin/router/softmax.hpp>

#include <cstddef>
#include <cstdint>
#include <tuple>

TIFFIN_BEGIN

// Turn the sums of the scores of chosen rows into their weights.
struct softmax_of_sums {
    template <class S>
    TIFFIN_HD static void weigh(S* sums, std::size_t n) {
        detail::softmax(sums, n);
    }
};
struct relu_of_sums {
    template <class S>
    TIFFIN_HD static void weigh(S* sums, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) sums[i] = relu{}(sums[i]);
    }
};

// Chooses rows of a table of keys^2 rows by two small sets of keys. Per head: q = W x + b in two halves; scores
// q_1 K_1^T and q_2 K_2^T; the top_k of each; the top_k of their sums s_i + s_j, for row i keys + j; weights: Weights of
// the chosen sums. Choices: head by head, best first; heads may choose the same row.
// Shapes: x (T, input), `query.weight` (heads 2 half, input), `query.bias` (heads 2 half, optional), `keys.weight`
//   (heads 2, keys, half): the first half's keys of head 0, then the second's, then those of head 1.
// Numerics: scores in the backend's exact products, k ascending, sums and weights in double; the result is the top_k
//   of all keys^2 sums as computed. Equal sums go to the lower row, also where one score is lost in the rounding of its
//   sum with another; NaN last. If one half has +inf and the other -inf, whose sum is NaN, it is only guaranteed that
//   the rows are distinct; the weights are NaN.
// Errors: top_k has no default: prepare() refuses 0 or more than keys with errc::option; an odd number of groups, a
//   query of another width, a table whose rows are not keys^2: errc::shape.
// Cost: 2 input heads 2 half + 4 heads keys half FLOPs per token, and the selection: 4 heads keys comparisons at
//   least, heads top_k keys more if more sums are equal than can be chosen.
// Source: product key memories (arXiv 1907.05242), memory layers at scale (arXiv 2412.09764), PEER (arXiv
//   2407.04153); docs/layers.md#product-keys.
template <class Weights>
struct product_keys_by {
    static constexpr bool chooses_rows = true;
    using tensors = tensor_list<query<"query.weight">, query_bias<"query.bias">, half_keys<"keys.weight">>;
    std::size_t top_k = 0;
    static constexpr auto options() noexcept { return std::tuple(option{"top_k", &product_keys_by::top_k}); }

    // The choices of one head. Shapes: scores (2, keys), scratch (3 top_k), weights, chosen (top_k). Precondition:
    // 0 < top_k <= keys.
    template <class Score, class S>
    TIFFIN_HD void pick(const Score* scores, std::size_t keys, ranked<S>* scratch, S* weights,
                        choice<Score>* chosen) const {
        ranked<S>*const first = scratch, *const second = first + top_k, *const best = second + top_k;
        std::size_t count = 0;
        for (std::size_t i = 0; i < keys; ++i)
            rank_in({S(scores[i]), static_cast<std::int32_t>(i)}, top_k, count, first);
        count = 0;
        for (std::size_t i = 0; i < keys; ++i)
            rank_in({S(scores[keys + i]), static_cast<std::int32_t>(i)}, top_k, count, second);
        count = 0;
        // (a + 1)(b + 1) pairs are at least as good as (a, b), itself included: more than top_k exclude it.
        for (std::size_t a = 0; a < top_k; ++a)
            for (std::size_t b = 0; (a + 1) * (b + 1) <= top_k; ++b)
                rank_in({first[a].value + second[b].value,
                         static_cast<std::int32_t>(static_cast<std::size_t>(first[a].number) * keys +
                                                   static_cast<std::size_t>(second[b].number))},
                        top_k, count, best);
        if (equal_beyond(scores, keys, first, second, best)) take_lower_rows(scores, keys, second[0], best);
        for (std::size_t i = 0; i < top_k; ++i) weights[i] = best[i].value;
        weigh(weights, top_k);
        for (std::size_t i = 0; i < top_k; ++i) chosen[i] = {best[i].number, static_cast<Score>(weights[i])};
    }
    // Turns the sums of the chosen rows into their weights.
    template <class S>
    TIFFIN_HD static void weigh(S* sums, std::size_t n) {
        Weights::weigh(sums, n);
    }

private:
    // Whether more than top_k sums are as good as the last chosen one. The ranks a and b of such a sum among the
    // scores of its halves have (a + 1)(b + 1) <= top_k + 1: one is 0, or both are below top_k.
    template <class Score, class S>
    TIFFIN_HD bool equal_beyond(const Score* scores, std::size_t keys, const ranked<S>* first,
                                const ranked<S>* second, const ranked<S>* best) const {
        const S last = best[top_k - 1].value;
        std::size_t as_good = 0;
        for (std::size_t i = 0; i < keys; ++i) {
            if (is_as_good(S(scores[i]) + second[0].value, last)) ++as_good;
            if (is_as_good(first[0].value + S(scores[keys + i]), last)) ++as_good;
        }
        --as_good;  // the pair of both best scores, counted twice
        for (std::size_t a = 1; a < top_k; ++a)
            for (std::size_t b = 1; b < top_k && (a + 1) * (b + 1) <= top_k + 1; ++b)
                if (is_as_good(first[a].value + second[b].value, last)) ++as_good;
        return as_good > top_k;
    }
    // Replaces the chosen sums that equal the last one by equal sums of the lowest rows.
    template <class Score, class S>
    TIFFIN_HD void take_lower_rows(const Score* scores, std::size_t keys, const ranked<S>& best_of_second,
                                   ranked<S>* best) const {
        const S last = best[top_k - 1].value;
        std::size_t at = 0;
        while (!is_as_good(last, best[at].value)) ++at;
        for (std::size_t i = 0; i < keys && at < top_k; ++i) {
            if (!is_as_good(S(scores[i]) + best_of_second.value, last)) continue;
            for (std::size_t j = 0; j < keys && at < top_k; ++j) {
                const S sum = S(scores[i]) + S(scores[keys + j]);
                if (is_as_good(sum, last) && is_as_good(last, sum))
                    best[at++] = {sum, static_cast<std::int32_t>(i * keys + j)};
            }
        }
    }
};
using product_keys = product_keys_by<softmax_of_sums>;
// As in lucidrains' PEER, where chosen experts do not compete: a row with a sum below 0 adds nothing.
using product_keys_relu = product_keys_by<relu_of_sums>;

TIFFIN_END
