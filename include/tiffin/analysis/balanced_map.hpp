// A maker of hash maps that give every expert equally many tokens.
#pragma once

#include <tiffin/analysis/initialise.hpp>  // its generator
#include <tiffin/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The sizes of a map, and the number that chooses one of the many maps of these sizes.
struct balanced_map_options {
    std::size_t vocab = 0;
    std::size_t experts = 0;
    std::size_t k = 1;
    std::uint64_t seed = 0;
};

namespace detail {

inline status check_balanced_map(const balanced_map_options& o) {
    const auto text = [](std::size_t n) { return std::to_string(n); };
    if (o.vocab == 0) return failure{errc::option, "vocab", "is 0"};
    if (o.experts == 0) return failure{errc::option, "experts", "is 0"};
    if (o.k == 0) return failure{errc::option, "k", "is 0; a token has at least one expert"};
    if (o.k > o.experts)
        return failure{
            errc::option, "k",
            "is " + text(o.k) + "; a token's experts are distinct, and there are only " + text(o.experts)};
    constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
    if (o.experts > most)
        return failure{errc::option, "experts",
                       "is " + text(o.experts) + "; 32-bit integers tell at most " + text(most) + " apart"};
    if (o.vocab > std::vector<std::int32_t>().max_size() / o.k)
        return failure{
            errc::option, "vocab",
            "is " + text(o.vocab) + "; a map of that many times " + text(o.k) + " does not fit in memory"};
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
// Source: SPEC section 2.3 (STEM's baseline: top-1 of 16 experts).
//
//     balanced_map({.vocab = 128256, .experts = 16, .k = 1, .seed = 7})
inline result<std::vector<std::int32_t>> balanced_map(const balanced_map_options& options) {
    if (status s = detail::check_balanced_map(options); !s) return s.failure();
    const std::size_t E = options.experts, k = options.k;
    detail::counter_random random(options.seed);
    std::vector<std::int32_t> order(E);
    std::iota(order.begin(), order.end(), 0);
    std::vector<std::int32_t> map(options.vocab * k);
    std::size_t used = E;  // of `order`; what is not used are its last E - used
    // Fisher and Yates, step i as it is asked for. The row in progress has `held` experts of the last
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

TIFFIN_END
