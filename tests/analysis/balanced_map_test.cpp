// Balanced maps, by ids and by counts: balance and distinctness over many sizes, and what is refused.
#include <tiffin/analysis/balanced_map.hpp>

#include "support/doctest.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace analysis_balanced_map_test {
using namespace tiffin;

namespace {

// What a map must be, and how often each expert occurs. The doctest assertions are few: there are
// millions of rows.
void check_map(const std::vector<std::int32_t>& map, const balanced_map_options& o) {
    CAPTURE(o.vocab);
    CAPTURE(o.experts);
    CAPTURE(o.k);
    CAPTURE(o.seed);
    REQUIRE(map.size() == o.vocab * o.k);
    std::vector<std::size_t> counts(o.experts), last_row(o.experts);
    std::size_t outside = 0, twice = 0, uneven = 0;
    for (std::size_t row = 0; row < o.vocab; ++row) {
        for (std::size_t i = 0; i < o.k; ++i) {
            const std::int32_t e = map[row * o.k + i];
            if (e < 0 || static_cast<std::size_t>(e) >= o.experts) {
                ++outside;
                continue;
            }
            twice += last_row[static_cast<std::size_t>(e)] == row + 1 ? 1u : 0u;
            last_row[static_cast<std::size_t>(e)] = row + 1;
            ++counts[static_cast<std::size_t>(e)];
        }
        // After every row: within one of n k / E, so that E * count is less than E from n k.
        if (o.vocab * o.experts > 2000000 && row + 1 != o.vocab) continue;
        for (const std::size_t c : counts) {
            const std::size_t have = c * o.experts, want = (row + 1) * o.k;
            uneven += (have > want ? have - want : want - have) >= o.experts ? 1 : 0;
        }
    }
    CHECK(outside == 0);
    CHECK(twice == 0);
    CHECK(uneven == 0);
}

std::vector<std::int32_t> made(const balanced_map_options& o) {
    result<std::vector<std::int32_t>> map = balanced_map(o);
    REQUIRE(map.ok());
    return *std::move(map);
}

std::vector<std::int32_t> made(const std::vector<std::uint64_t>& counts, std::size_t E, std::size_t k = 1) {
    result<std::vector<std::int32_t>> map = balanced_map_by_counts(counts, E, k);
    REQUIRE(map.ok());
    return *std::move(map);
}

// The greedy assignment written again, without a sort or a heap: every choice looks at everything.
std::vector<std::int32_t> greedy(const std::vector<std::uint64_t>& counts, std::size_t E, std::size_t k) {
    std::vector<std::uint64_t> load(E), ids(E);
    std::vector<std::int32_t> map(counts.size() * k, -1);
    std::vector<bool> done(counts.size());
    for (std::size_t turn = 0; turn < counts.size(); ++turn) {
        std::size_t id = counts.size();
        for (std::size_t i = counts.size(); i-- > 0;)
            if (!done[i] && (id == counts.size() || counts[i] >= counts[id])) id = i;
        done[id] = true;
        std::vector<bool> taken(E);
        for (std::size_t i = 0; i < k; ++i) {
            std::size_t best = E;
            for (std::size_t e = 0; e < E; ++e) {
                if (taken[e]) continue;
                const auto better = [&](const auto& first, const auto& second) {
                    return first[e] != first[best] ? first[e] < first[best] : second[e] < second[best];
                };
                if (best == E || (counts[id] != 0 ? better(load, ids) : better(ids, load))) best = e;
            }
            taken[best] = true;
            map[id * k + i] = static_cast<std::int32_t>(best);
        }
        for (std::size_t e = 0; e < E; ++e) {
            load[e] += taken[e] ? counts[id] : 0;
            ids[e] += taken[e] ? 1u : 0u;
        }
    }
    return map;
}

// The sum of the counts of each expert's ids.
std::vector<std::uint64_t> loads(const std::vector<std::int32_t>& map,
                                 const std::vector<std::uint64_t>& counts, std::size_t E) {
    std::vector<std::uint64_t> load(E);
    const std::size_t k = map.size() / counts.size();
    for (std::size_t i = 0; i < map.size(); ++i) load[static_cast<std::size_t>(map[i])] += counts[i / k];
    return load;
}

// Counts as 1 / (id + 1), the most frequent id 1e12 times.
std::vector<std::uint64_t> zipf(std::size_t V) {
    std::vector<std::uint64_t> counts(V);
    for (std::size_t id = 0; id < V; ++id) counts[id] = 1000000000000u / (id + 1);
    return counts;
}

}  // namespace

TEST_CASE("balanced_map: balance and distinctness, every small size") {
    for (std::size_t E = 1; E <= 9; ++E)
        for (std::size_t k = 1; k <= E; ++k)
            for (std::size_t V = 1; V <= 40; ++V)
                for (std::uint64_t seed = 0; seed < 3; ++seed) {
                    const balanced_map_options o{V, E, k, seed};
                    check_map(made(o), o);
                }
}

TEST_CASE("balanced_map: balance and distinctness, odd and large sizes") {
    for (const balanced_map_options& o : {balanced_map_options{3, 16, 2, 1},
                                          {1, 1000, 999, 2},
                                          {2, 1000, 999, 3},
                                          {5, 100000, 7, 4},
                                          {1000, 64, 64, 5},
                                          {1001, 64, 63, 6},
                                          {997, 31, 30, 7},
                                          {997, 31, 16, 8},
                                          {10007, 17, 1, 9},
                                          {10007, 16, 2, 10},
                                          {128256, 16, 1, 11},
                                          {151680, 48, 5, 12},
                                          {262144, 7, 3, ~std::uint64_t{0}}})
        check_map(made(o), o);
}

// From a second implementation, in Python, which looks for the experts a row lacks one by one.
TEST_CASE("balanced_map: the same maps everywhere") {
    CHECK(made({7, 5, 3, 42}) ==
          std::vector<std::int32_t>{3, 1, 4, 2, 0, 1, 3, 4, 0, 2, 0, 3, 1, 2, 4, 0, 1, 3, 2, 4, 3});
    CHECK(made({6, 16, 1, 1}) == std::vector<std::int32_t>{15, 13, 2, 6, 5, 14});
    CHECK(made({3, 4, 4, 9}) == std::vector<std::int32_t>{0, 3, 2, 1, 3, 1, 0, 2, 3, 0, 1, 2});
}

TEST_CASE("balanced_map: the seed chooses the map") {
    const balanced_map_options o{500, 16, 2, 1};
    CHECK(made(o) == made(o));
    std::set<std::vector<std::int32_t>> different;
    for (std::uint64_t seed = 0; seed < 50; ++seed) different.insert(made({500, 16, 2, seed}));
    CHECK(different.size() == 50);
    CHECK(balanced_map_options{}.k == 1);
    CHECK(balanced_map_options{}.seed == 0);
}

// Over seeds every expert is as likely in every place: counts are binomial, 6 standard deviations.
// Also where a row is cut by the end of a shuffle (5 experts, rows of 3: the second row), and of any
// two experts: pairs of one row are as likely as any other.
TEST_CASE("balanced_map: chance has no favourites") {
    constexpr std::size_t V = 5, E = 5, k = 3, seeds = 20000;
    std::vector<double> at(V * k * E), together(V * E * E);
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        const auto map = made({V, E, k, seed});
        for (std::size_t i = 0; i < V * k; ++i) ++at[i * E + static_cast<std::size_t>(map[i])];
        for (std::size_t row = 0; row < V; ++row)
            for (std::size_t i = 0; i < k; ++i)
                for (std::size_t j = 0; j < k; ++j)
                    ++together[(row * E + static_cast<std::size_t>(map[row * k + i])) * E +
                               static_cast<std::size_t>(map[row * k + j])];
    }
    const auto binomial = [&](double c, double p) {
        return std::fabs(c - seeds * p) <= 6 * std::sqrt(seeds * p * (1 - p));
    };
    for (const double c : at) CHECK(binomial(c, 1.0 / E));
    for (std::size_t i = 0; i < together.size(); ++i) {
        const bool same = i / E % E == i % E;  // in the row: k of E; two of them: k (k - 1) of E (E - 1)
        CHECK(binomial(together[i], same ? 3.0 / 5 : 3.0 * 2 / (5 * 4)));
    }
}

TEST_CASE("balanced_map: what is refused") {
    const auto refused = [](const balanced_map_options& o, const std::string& message) {
        const auto map = balanced_map(o);
        REQUIRE(!map.ok());
        CHECK(map.failure().code == errc::option);
        CHECK(map.failure().message() == message);
    };
    refused({0, 4, 1, 0}, "vocab: is 0");
    refused({9, 0, 1, 0}, "experts: is 0");
    refused({9, 4, 0, 0}, "k: is 0; a token has at least one expert");
    refused({9, 4, 5, 0}, "k: is 5; a token's experts are distinct, and there are only 4");
    refused({9, std::size_t{1} << 31, 1, 0},
            "experts: is 2147483648; 32-bit integers tell at most 2147483647 apart");
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    refused({most, 4, 3, 0},
            "vocab: is " + std::to_string(most) + "; a map of that many times 3 does not fit in memory");
    refused(
        {most / 2 + 1, 4, 2, 0},  // V k is 0 in 64 bits
        "vocab: is " + std::to_string(most / 2 + 1) + "; a map of that many times 2 does not fit in memory");
}

TEST_CASE("balanced_map_by_counts: a case by hand") {
    // 8 to expert 0, 5 and 3 to 1, then loads of 8 and 8: the 3 to expert 0, which has fewer ids; 1 to
    // expert 1. The count of 0 goes to expert 0, which has more load but fewer ids.
    CHECK(made({5, 3, 8, 3, 0, 1}, 2) == std::vector<std::int32_t>{1, 1, 0, 0, 0, 1});
    // Loads of 6 and 6 again: the last 1 to expert 1, which has 2 ids where expert 0 has 3.
    CHECK(made({4, 3, 3, 1, 1, 1}, 2) == std::vector<std::int32_t>{0, 1, 1, 0, 0, 1});
    // Rows in the order of the load: 9 to {0, 1}, 4 to {2, 0}, 3 to {2, 1}, 1 to {2, 1}.
    CHECK(made({1, 9, 4, 3}, 3, 2) == std::vector<std::int32_t>{2, 1, 0, 1, 2, 0, 2, 1});
}

// Counts of a few values, with many ties and zeros, and of many values.
TEST_CASE("balanced_map_by_counts: is the greedy assignment, with its bound") {
    detail::counter_random random(77);
    for (std::size_t E = 1; E <= 9; ++E)
        for (std::size_t k = 1; k <= E; ++k)
            for (const std::size_t V : {1u, 2u, 7u, 40u, 63u})
                for (const std::uint64_t most : {1u, 2u, 5u, 20u, 1000000u}) {
                    CAPTURE(E);
                    CAPTURE(k);
                    CAPTURE(V);
                    CAPTURE(most);
                    std::vector<std::uint64_t> counts(V);
                    for (std::uint64_t& c : counts) c = random.below(most);
                    const auto map = made(counts, E, k);
                    CHECK(map == greedy(counts, E, k));
                    for (std::size_t row = 0; row < V; ++row) {
                        const std::set<std::int32_t> distinct(&map[row * k], &map[row * k] + k);
                        REQUIRE(distinct.size() == k);
                    }
                    const auto load = loads(map, counts, E);
                    const auto [least, busiest] = std::minmax_element(load.begin(), load.end());
                    const std::uint64_t largest = *std::max_element(counts.begin(), counts.end());
                    const auto sum = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
                    CHECK(*busiest - *least <= largest);
                    CHECK(E * *busiest <= k * sum + (E - 1) * largest);  // the mean plus the largest count
                }
}

// In the order of the ids, 1, 1, 2 on two experts would give 3 and 1.
TEST_CASE("balanced_map_by_counts: within 4/3 of the best map of one expert per token") {
    CHECK(loads(made({1, 1, 2}, 2), {1, 1, 2}, 2) == std::vector<std::uint64_t>{2, 2});
    detail::counter_random random(78);
    for (std::size_t round = 0; round < 60; ++round) {
        constexpr std::size_t E = 3, V = 8;
        std::vector<std::uint64_t> counts(V);
        for (std::uint64_t& c : counts) c = random.below(30);
        std::uint64_t best = ~std::uint64_t{0};
        for (std::size_t n = 0; n < 6561; ++n) {  // every map: 3^8
            std::array<std::uint64_t, E> load{};
            for (std::size_t id = 0, rest = n; id < V; ++id, rest /= E) load[rest % E] += counts[id];
            best = std::min(best, *std::max_element(load.begin(), load.end()));
        }
        const auto load = loads(made(counts, E), counts, E);
        CHECK(3 * *std::max_element(load.begin(), load.end()) <= 4 * best);
    }
}

TEST_CASE("balanced_map_by_counts: even where balanced_map is not, under Zipf") {
    constexpr std::size_t V = 128256;
    const auto counts = zipf(V);
    const auto sum = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
    const auto busiest = [&](const std::vector<std::int32_t>& map, std::size_t E) {  // in units of the mean
        const auto load = loads(map, counts, E);
        const double k = static_cast<double>(map.size()) / static_cast<double>(V);
        return static_cast<double>(*std::max_element(load.begin(), load.end())) * static_cast<double>(E) /
               (sum * k);
    };
    // Id 0 is 8.1 % of the tokens: below a share of 8 experts, above one of 16.
    CHECK(busiest(made(counts, 8), 8) <= 1.00001);
    CHECK(busiest(made({V, 8, 1, 5}), 8) >= 1.3);
    const auto by_counts = made(counts, 16);
    CHECK(loads(by_counts, counts, 16).front() == counts.front());  // alone with expert 0
    CHECK(std::fabs(busiest(by_counts, 16) - 1.30) <= 0.005);
    CHECK(std::fabs(busiest(made({V, 16, 1, 5}), 16) - 2) <= 0.1);
    CHECK(busiest(made(counts, 16, 2), 16) <= 1.00001);
    // The price: experts differ in their ids.
    std::vector<std::size_t> ids(16);
    for (const std::int32_t e : by_counts) ++ids[static_cast<std::size_t>(e)];
    CHECK(ids.front() == 1);
    CHECK(*std::max_element(ids.begin(), ids.end()) > V / 16);
}

TEST_CASE("balanced_map_by_counts: ids that do not occur are spread by number") {
    std::vector<std::size_t> ids(7);
    for (const std::int32_t e : made(std::vector<std::uint64_t>(1000), 7, 3))
        ++ids[static_cast<std::size_t>(e)];
    for (const std::size_t n : ids) CHECK((n == 3000 / 7 || n == 3000 / 7 + 1));
    // Beside ids that do: expert 0 has 1 of these, expert 1 has 99; 200 more make it 150 and 150.
    std::vector<std::uint64_t> counts(300, 1);
    counts[0] = 1000;
    std::fill(counts.begin() + 100, counts.end(), std::uint64_t{0});
    const auto map = made(counts, 2);
    CHECK(std::count(map.begin(), map.begin() + 100, 0) == 1);
    CHECK(std::count(map.begin(), map.end(), 0) == 150);
}

TEST_CASE("balanced_map_by_counts: what is refused") {
    const auto refused = [](const std::vector<std::uint64_t>& counts, std::size_t E, std::size_t k,
                            const std::string& message) {
        const auto map = balanced_map_by_counts(counts, E, k);
        REQUIRE(!map.ok());
        CHECK(map.failure().code == errc::option);
        CHECK(map.failure().message() == message);
    };
    refused({}, 4, 1, "vocab: is 0");
    refused({1}, 0, 1, "experts: is 0");
    refused({1}, 4, 0, "k: is 0; a token has at least one expert");
    refused({1}, 4, 5, "k: is 5; a token's experts are distinct, and there are only 4");
    refused({1}, std::size_t{1} << 31, 1,
            "experts: is 2147483648; 32-bit integers tell at most 2147483647 apart");
    constexpr std::uint64_t half = std::uint64_t{1} << 63;
    refused({half, 1, half}, 4, 2, "counts: have a sum beyond 64 bits");
    CHECK(made({half, half - 1}, 1) == std::vector<std::int32_t>{0, 0});  // the largest sum there can be
}

}  // namespace analysis_balanced_map_test
