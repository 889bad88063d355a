// Routing statistics against counts and entropies made another way, and what is refused.
#include <tiffin/analysis/routing.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace analysis_routing_test {
using tiffin::errc;
using tiffin::routing_statistics;

namespace {

std::vector<std::uint64_t> copied(const routing_statistics& s) {
    return {s.selections().begin(), s.selections().end()};
}

}  // namespace

TEST_CASE("routing: by hand") {
    routing_statistics text(4);
    REQUIRE(text.add(std::vector<std::int32_t>{0, 1, 0, 2}, 2).ok());
    REQUIRE(text.add(std::vector<std::int32_t>{0, 0, 1, 2}).ok());
    CHECK(text.experts() == 4);
    CHECK(copied(text) == std::vector<std::uint64_t>{4, 2, 2, 0});
    CHECK(text.total() == 8);
    CHECK(text.tokens() == 2 + 4);  // two rows of two, four rows of one
    CHECK(text.share(1) == 0.25);
    CHECK(text.share(3) == 0);
    CHECK(text.busiest() == 0);
    CHECK(text.busiest_share() == 0.5);
    // 1/2 log 2 + 2 * 1/4 log 4 = 3/2 log 2; log 4 = 2 log 2. A few roundings.
    CHECK(text.entropy() == doctest::Approx(1.5 * std::log(2.0)).epsilon(1e-15));
    CHECK(text.entropy_share() == doctest::Approx(0.75).epsilon(1e-15));
}

// log N - sum n log n / N is the entropy too, in long double here. Every term of the library's sum has
// a few roundings, relative to itself and all of one sign, and E additions follow.
TEST_CASE("routing: any sizes") {
    tiffin_test::random_numbers random(1);
    for (const std::size_t E : {1u, 2u, 3u, 7u, 16u, 129u})
        for (const std::size_t k : {1u, 2u, 5u}) {
            CAPTURE(E);
            CAPTURE(k);
            routing_statistics text(E);
            std::vector<std::uint64_t> want(E);
            std::size_t tokens = 0;
            for (const std::size_t T : {1u, 0u, 17u, 250u}) {
                std::vector<std::int32_t> routes(T * k);
                // Uneven: low experts are more likely.
                for (auto& e : routes) e = static_cast<std::int32_t>(random.below(1 + random.below(E)));
                for (const auto e : routes) ++want[static_cast<std::size_t>(e)];
                tokens += T;
                REQUIRE(text.add(routes, k).ok());
            }
            CHECK(copied(text) == want);
            CHECK(text.tokens() == tokens);
            CHECK(text.total() == tokens * k);
            long double sum = 0, N = static_cast<long double>(tokens * k);
            std::uint64_t most = 0;
            for (const auto n : want) {
                if (n != 0) sum += static_cast<long double>(n) * std::log(static_cast<long double>(n));
                if (n > most) most = n;
            }
            const auto entropy = static_cast<double>(std::log(N) - sum / N);
            CHECK(std::fabs(text.entropy() - entropy) <=
                  static_cast<double>(E + 8) * 0x1p-53 * (entropy + 1));
            CHECK(text.busiest_share() == static_cast<double>(most) / static_cast<double>(tokens * k));
            CHECK(want[text.busiest()] == most);
            if (E > 1)
                CHECK(text.entropy_share() == text.entropy() / std::log(static_cast<double>(E)));
            else
                CHECK(text.entropy_share() == 1);
        }
}

TEST_CASE("routing: the extremes") {
    routing_statistics even(5), one(5);
    for (std::int32_t e = 0; e < 5; ++e) {
        REQUIRE(even.add(std::vector<std::int32_t>{e}).ok());
        REQUIRE(one.add(std::vector<std::int32_t>{3}).ok());
    }
    CHECK(even.entropy_share() == doctest::Approx(1).epsilon(1e-15));
    CHECK(even.busiest_share() == 0.2);
    CHECK(even.busiest() == 0);  // the lowest of equals
    CHECK(one.entropy() == 0);
    CHECK(one.busiest_share() == 1);
    CHECK(one.busiest() == 3);
}

TEST_CASE("routing: nothing counted") {
    for (const std::size_t E : {0u, 1u, 4u}) {
        routing_statistics text(E);
        REQUIRE(text.add({}, 3).ok());
        CHECK(text.total() == 0);
        CHECK(text.tokens() == 0);
        CHECK(text.entropy() == 0);
        CHECK(text.entropy_share() == 0);
        CHECK(text.busiest_share() == 0);
    }
}

TEST_CASE("routing: what is refused, and that nothing is counted then") {
    routing_statistics text(8);
    REQUIRE(text.add(std::vector<std::int32_t>{1, 2}, 2).ok());
    const auto before = copied(text);
    const auto refused = [&](const std::vector<std::int32_t>& routes, std::size_t k, errc code,
                             const std::string& message) {
        const tiffin::status s = text.add(routes, k);
        REQUIRE(!s.ok());
        CHECK(s.failure().code == code);
        CHECK(s.failure().message() == message);
        CHECK(copied(text) == before);
        CHECK(text.total() == 2);
        CHECK(text.tokens() == 1);
    };
    refused({0, 1, 2, 3, 4, 8}, 2, errc::option,
            "routes: expert 8 of token 2 of the call lies outside [0, 8)");
    refused({0, -1}, 1, errc::option, "routes: expert -1 of token 1 of the call lies outside [0, 8)");
    refused({0, 1, 2}, 2, errc::size, "routes: 3 indices are no whole number of rows of 2");
    refused({0}, 0, errc::option, "k: is 0; a token selects at least one expert");
    CHECK(routing_statistics(0).add(std::vector<std::int32_t>{0}).failure().code == errc::option);
}

}  // namespace analysis_routing_test
