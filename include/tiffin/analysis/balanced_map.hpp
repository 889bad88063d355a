// Makes hash maps that give every expert equally many ids, or equally many tokens of a text.
#pragma once

#include <tiffin/analysis/initialise.hpp>  // its generator
#include <tiffin/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The sizes of a map, and the seed that selects one of the many maps of these sizes.
struct balanced_map_options {
    std::size_t vocab = 0;
    std::size_t experts = 0;
    std::size_t k = 1;
    std::uint64_t seed = 0;
};

namespace detail {

inline status check_balanced_map(const balanced_map_options& o) {
    const auto text = [](std::size_t n) { return std::to_string(n); };
    if (o.vocab == 0) return failure(errc::option, "vocab", "is 0");
    if (o.experts == 0) return failure(errc::option, "experts", "is 0");
    if (o.k == 0) return failure(errc::option, "k", "is 0; a token has at least one expert");
    if (o.k > o.experts)
        return failure(errc::option, "k", "is ", text(o.k),
                       "; a token's experts are distinct, and there are only ", text(o.experts));
    constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
    if (o.experts > most)
        return failure(errc::option, "experts", "is ", text(o.experts), "; 32-bit integers tell at most ",
                       text(most), " apart");
    if (o.vocab > std::vector<std::int32_t>().max_size() / o.k)
        return failure(errc::option, "vocab", "is ", text(o.vocab), "; a map of that many times ", text(o.k),
                       " does not fit in memory");
    return {};
}

}  // namespace detail

// Makes a map from token ids to experts that is balanced, and random otherwise.
// The experts of the tokens 0, 1, 2, ... are read off one shuffle of all E experts after another. Where
//   a token's experts begin in one shuffle and end in the next, the next begins with others than those.
// Shapes: the map is (V,k), row by row, with indices in [0, E); the k of a row are distinct.
// Balance: an expert is in floor(V k / E) or ceil(V k / E) rows. The same holds of the first n rows for
//   every n, so a vocabulary sorted by frequency has its frequent tokens spread as well.
// Numerics: integers only; the same options give the same map on every machine.
// Errors: errc::option for a size of 0, k > E, E beyond 32-bit integers, V k beyond the memory.
// Cost: O(V k + E); allocates the map and E indices.
// Source: docs/layers.md#hash-maps (STEM's baseline: top-1 of 16 experts).
//
//     balanced_map({.vocab = 128256, .experts = 16, .k = 1, .seed = 7})
inline result<std::vector<std::int32_t>> balanced_map(const balanced_map_options& options) {
    if (status s = detail::check_balanced_map(options); !s) return s.failure();
    const std::size_t E = options.experts, k = options.k;
    detail::counter_random random(options.seed);
    std::vector<std::int32_t> order(E);
    std::iota(order.begin(), order.end(), 0);
    std::vector<std::int32_t> map(options.vocab * k);
    std::size_t used = E;  // of `order`; its last E - used are unused
    // Fisher-Yates, one step per selection. The row in progress has `held` experts of the last
    // shuffle, which are at the end of `order`, and takes the next k - held from before them.
    std::size_t held = 0;
    for (std::size_t token = 0; token < options.vocab; ++token)
        for (std::size_t i = 0; i < k; ++i) {
            if (used == E) {
                used = 0;
                held = i;
            }
            const std::size_t end = used + held < k ? E - held : E;
            const std::size_t chosen = used + static_cast<std::size_t>(random.below(end - used));
            std::swap(order[used], order[chosen]);
            map[token * k + i] = order[used++];
        }
    return map;
}

namespace detail {

// What an expert has been assigned so far.
struct expert_share {
    std::uint64_t load = 0;
    std::size_t ids = 0;
    std::int32_t index = 0;
};

// Assigns k experts to each of `ids`, in their order. after(a, b): whether a is to be chosen after b, which makes
// `shares` a heap with the next expert on top. Precondition: k <= shares.size().
template <class After>
void deal(std::span<const std::size_t> ids, std::span<const std::uint64_t> counts, std::size_t k,
          std::vector<expert_share>& shares, std::vector<std::int32_t>& map, const After& after) {
    std::make_heap(shares.begin(), shares.end(), after);
    for (const std::size_t id : ids) {
        // The chosen move to the end of the heap and stay there until the row is complete: they are distinct.
        auto end = shares.end();
        for (std::size_t i = 0; i < k; ++i) {
            std::pop_heap(shares.begin(), end, after);
            map[id * k + i] = (--end)->index;
        }
        for (; end != shares.end(); std::push_heap(shares.begin(), end, after)) {
            end->load += counts[id];
            ++end->ids;
            ++end;
        }
    }
}

}  // namespace detail

// Makes a map from token ids to experts that gives every expert an even share of a text with these counts.
// Greedy: ids by descending count (ties: the lower id), each to the k experts of the smallest load so far
//   (ties: the expert with fewer ids, then the lower index); a load is the sum of the counts of an expert's
//   ids. Ids with a count of 0 change no load: each goes to the k experts with the fewest ids (ties: the
//   smaller load, then the lower index). Otherwise one expert would get them all.
// Shapes: counts (V), indexed by id; the map is (V,k), row by row, with indices in [0, E); the k of a row
//   are distinct and in the order they were chosen in.
// Balance: the loads of any two experts differ by at most the largest count, so the largest load is at most
//   the mean, k sum(counts) / E, plus the largest count. For k = 1 it is also at most 4/3 of that of the best
//   map. No map has less than the largest count. balanced_map evens out ids, not tokens. Under Zipf's law
//   (counts as 1/id, V 128256, E 16, k 1) its busiest expert gets about twice the mean; here it gets 1.30
//   times the mean, the share of id 0 alone.
// Numerics: integers only; the same counts give the same map on every machine.
// Errors: as balanced_map, with counts.size() as vocab; errc::option where the counts' sum is beyond 64 bits.
// Cost: O(V (log V + k log E) + E); allocates the map, V ids and E shares.
// Source: docs/layers.md#hash-maps; R. L. Graham, Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 17
//   (1969), for the 4/3.
//
//     balanced_map_by_counts(counts_of_the_training_text, 16)
inline result<std::vector<std::int32_t>> balanced_map_by_counts(std::span<const std::uint64_t> counts,
                                                                std::size_t experts, std::size_t k = 1) {
    if (status s = detail::check_balanced_map({.vocab = counts.size(), .experts = experts, .k = k}); !s)
        return s.failure();
    std::uint64_t sum = 0;
    for (const std::uint64_t c : counts)
        if ((sum += c) < c) return failure(errc::option, "counts", "have a sum beyond 64 bits");
    std::vector<std::size_t> ids(counts.size());
    std::iota(ids.begin(), ids.end(), std::size_t{0});
    std::sort(ids.begin(), ids.end(), [&](std::size_t a, std::size_t b) {
        return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
    });
    const auto unseen = std::find_if(ids.begin(), ids.end(), [&](std::size_t id) { return counts[id] == 0; });
    std::vector<detail::expert_share> shares(experts);
    for (std::size_t e = 0; e < experts; ++e) shares[e].index = static_cast<std::int32_t>(e);
    std::vector<std::int32_t> map(counts.size() * k);
    using share = detail::expert_share;
    detail::deal({ids.begin(), unseen}, counts, k, shares, map, [](const share& a, const share& b) {
        return std::tie(a.load, a.ids, a.index) > std::tie(b.load, b.ids, b.index);
    });
    detail::deal({unseen, ids.end()}, counts, k, shares, map, [](const share& a, const share& b) {
        return std::tie(a.ids, a.load, a.index) > std::tie(b.ids, b.load, b.index);
    });
    return map;
}

TIFFIN_END
