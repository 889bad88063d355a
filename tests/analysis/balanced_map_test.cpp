// Balanced maps: balance and distinctness over many sizes, chance otherwise, and what is refused.
#include <tiffin/analysis/balanced_map.hpp>

#include "support/doctest.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

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
