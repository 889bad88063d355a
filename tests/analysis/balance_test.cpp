// The balance losses against their formulas, written in the opposite order of sums, and what is refused.
#include <tiffin/analysis/balance.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace analysis_balance_test {
using namespace tiffin;

namespace {

struct routed {
    routing_shape shape;
    std::vector<float> values;  // (T,E)
    std::vector<std::int32_t> routes;

    routed(routing_shape s, float scale, std::uint32_t seed)
        : shape(s), values(s.tokens * s.experts), routes(s.tokens * s.k) {
        tiffin_test::random_numbers random(seed);
        random.fill(values, scale);
        std::vector<std::int32_t> order(s.experts);
        std::iota(order.begin(), order.end(), 0);
        for (std::size_t t = 0; t < s.tokens; ++t)
            for (std::size_t i = 0; i < s.k; ++i) {
                // Distinct, and uneven: low experts more often.
                std::swap(order[i], order[i + random.below(1 + random.below(s.experts - i))]);
                routes[t * s.k + i] = order[i];
            }
    }
    long double fraction(std::size_t e) const {
        return static_cast<long double>(
                   std::count(routes.begin(), routes.end(), static_cast<std::int32_t>(e))) /
               static_cast<long double>(routes.size());
    }
    long double value(std::size_t t, std::size_t e) const { return values[t * shape.experts + e]; }
};

const std::vector<routing_shape> shapes{{1, 1, 1},   {1, 2, 1},   {3, 5, 2},   {17, 7, 7},
                                        {64, 16, 1}, {100, 3, 2}, {251, 33, 5}};

long double sigmoid(long double g) {
    return 1 / (1 + std::exp(-g));
}

}  // namespace

// T + E additions of positive numbers and a few products: (T + E + 8) roundings of 2^-53 of the result.
TEST_CASE("balance: the Switch loss is its formula") {
    std::uint32_t seed = 0;
    for (const routing_shape& shape : shapes) {
        CAPTURE(shape.tokens);
        CAPTURE(shape.experts);
        routed r(shape, 1, ++seed);
        for (float& v : r.values) v = std::fabs(v);
        long double want = 0;
        for (std::size_t e = 0; e < shape.experts; ++e)
            for (std::size_t t = 0; t < shape.tokens; ++t) want += r.fraction(e) * r.value(t, e);
        want *= static_cast<long double>(shape.experts) / static_cast<long double>(shape.tokens);
        const double tolerance = static_cast<double>(shape.tokens + shape.experts + 8) * 0x1p-53;
        for (const double alpha : {0.01, 1.0, 0.3}) {
            const result<double> got = switch_balance_loss(r.values, r.routes, shape, alpha);
            REQUIRE(got.ok());
            const auto exact = static_cast<double>(want) * alpha;
            CHECK(std::fabs(*got - exact) <= tolerance * exact);
        }
        CHECK(*switch_balance_loss(r.values, r.routes, shape) ==
              *switch_balance_loss(r.values, r.routes, shape, 0.01));
    }
}

TEST_CASE("balance: the Switch loss by hand") {
    // Even selections: alpha, whatever the probabilities.
    const std::vector<float> p{0.75f, 0.25f, 0.5f, 0.5f};
    CHECK(*switch_balance_loss(p, std::vector<std::int32_t>{0, 1}, {2, 2, 1}) ==
          doctest::Approx(0.01).epsilon(1e-15));
    CHECK(*switch_balance_loss(p, std::vector<std::int32_t>{0, 1, 1, 0}, {2, 2, 2}, 1) == 1);
    // Both to expert 0, of mean probability 5/8: 2 * 5/8.
    CHECK(*switch_balance_loss(p, std::vector<std::int32_t>{0, 0}, {2, 2, 1}, 1) == 1.25);
    // Collapsed: alpha * E.
    CHECK(*switch_balance_loss(std::vector<float>{0, 1, 0, 0, 1, 0}, std::vector<std::int32_t>{1, 1},
                               {2, 3, 1}, 1) == 3);
}

// The sigmoids as they are written in the paper, in long double. A log-sigmoid of magnitude at most |g|
// + 1 brings an absolute error of (|g| + 4) roundings into the exponent, twice (with the largest).
TEST_CASE("balance: MoRT's loss is its formula") {
    std::uint32_t seed = 100;
    for (const routing_shape& shape : shapes)
        for (const float scale : {1.0f, 20.0f, 300.0f}) {
            CAPTURE(shape.tokens);
            CAPTURE(shape.experts);
            CAPTURE(scale);
            const routed r(shape, scale, ++seed);
            long double want = 0;
            for (std::size_t e = 0; e < shape.experts; ++e)
                for (std::size_t t = 0; t < shape.tokens; ++t) {
                    long double row = 0;
                    for (std::size_t j = 0; j < shape.experts; ++j) row += sigmoid(r.value(t, j));
                    want += r.fraction(e) * sigmoid(r.value(t, e)) / row;
                }
            want *= static_cast<long double>(shape.experts) / static_cast<long double>(shape.tokens);
            const double tolerance = (static_cast<double>(shape.tokens + 2 * shape.experts + 16) +
                                      4 * (static_cast<double>(scale) + 4)) *
                                     0x1p-53;
            for (const double lambda : {1e-4, 1.0}) {
                const result<double> got = mort_balance_loss(r.values, r.routes, shape, lambda);
                REQUIRE(got.ok());
                const auto exact = static_cast<double>(want) * lambda;
                CHECK(std::fabs(*got - exact) <= tolerance * exact);
            }
            CHECK(*mort_balance_loss(r.values, r.routes, shape) ==
                  *mort_balance_loss(r.values, r.routes, shape, 1e-4));
        }
}

TEST_CASE("balance: MoRT's loss by hand, and far from 0") {
    const auto loss = [](const std::vector<float>& g, const std::vector<std::int32_t>& routes,
                         const routing_shape& shape) { return *mort_balance_loss(g, routes, shape, 1); };
    const auto near = [](double v) { return doctest::Approx(v).epsilon(1e-13); };  // logs of up to 2^10
    // Sigmoids 1/2 and 3/4 (g = log 3) are 2/5 and 3/5: not what a softmax gives, 1/4 and 3/4. The f32
    // of log 3 is within 2^-25 of it.
    CHECK(loss({0, std::log(3.0f)}, {1}, {1, 2, 1}) == doctest::Approx(2 * 0.6).epsilon(1e-7));
    // The mean over tokens is of normalised rows: (1/2 + 2/5) / 2, not (1/2 + 1/2) / (1 + 5/4) = 4/9.
    CHECK(loss({0, 0, 0, std::log(3.0f)}, {0, 0}, {2, 2, 1}) == doctest::Approx(2 * 0.45).epsilon(1e-7));
    // Sigmoids that are 0 even in double keep their ratio, e to 1; large ones are equal.
    CHECK(loss({-3000, -3001}, {0}, {1, 2, 1}) == near(2 * std::exp(1.0) / (std::exp(1.0) + 1)));
    CHECK(loss({3000, 5000, -3e38f}, {0}, {1, 3, 1}) == near(3 * 0.5));
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(loss({infinity, 0, -infinity}, {0}, {1, 3, 1}) == near(3 * (1 / 1.5)));
    CHECK(std::isnan(loss({-infinity, -infinity}, {0}, {1, 2, 1})));
    CHECK(std::isnan(loss({1, std::numeric_limits<float>::quiet_NaN()}, {0}, {1, 2, 1})));
}

TEST_CASE("balance: what is refused") {
    const std::vector<float> values(6);
    const std::vector<std::int32_t> routes{0, 1, 2, 0};
    const auto refused = [&](std::span<const float> v, std::span<const std::int32_t> to,
                             const routing_shape& shape, errc code, const std::string& where,
                             const std::string& what) {
        const result<double> a = switch_balance_loss(v, to, shape), b = mort_balance_loss(v, to, shape);
        REQUIRE(!a.ok());
        REQUIRE(!b.ok());
        CHECK(a.failure().code == code);
        CHECK(b.failure().code == code);
        CHECK(b.failure().what == what);
        CHECK(a.failure().what == what);
        CHECK(a.failure().where == (where == "values" ? "probabilities" : where));
        CHECK(b.failure().where == (where == "values" ? "logits" : where));
    };
    CHECK(switch_balance_loss(values, routes, {2, 3, 2}).ok());
    CHECK(mort_balance_loss(values, routes, {2, 3, 2}).ok());
    refused({}, {}, {0, 3, 2}, errc::option, "tokens", "is 0; there is no mean over no tokens");
    refused({}, {}, {2, 0, 0}, errc::option, "experts", "is 0");
    refused(values, {}, {2, 3, 0}, errc::option, "k", "is 0, not 1 to the 3 experts");
    refused(values, routes, {2, 3, 4}, errc::option, "k", "is 4, not 1 to the 3 experts");
    refused(std::span(values).first(5), routes, {2, 3, 2}, errc::size, "values",
            "has 5 elements, not (2, 3)");
    refused(values, routes, {3, 3, 2}, errc::size, "values", "has 6 elements, not (3, 3)");
    refused(values, std::span(routes).first(3), {2, 3, 2}, errc::size, "routes",
            "has 3 elements, not (2, 2)");
    // 2 * 2^63 and 2^63 * 2 are 0 in 64 bits.
    const std::size_t half = std::numeric_limits<std::size_t>::max() / 2 + 1;
    refused({}, {}, {half, 2, 1}, errc::size, "values",
            "has 0 elements, not (" + std::to_string(half) + ", 2)");
    refused({}, {}, {2, half, 1}, errc::size, "values",
            "has 0 elements, not (2, " + std::to_string(half) + ")");
    for (const std::int32_t outside : {3, -1}) {
        const std::vector<std::int32_t> bad{0, 1, 2, outside};
        refused(values, bad, {2, 3, 2}, errc::option, "routes",
                "expert " + std::to_string(outside) + " of token 1 of the call lies outside [0, 3)");
    }
}

}  // namespace analysis_balance_test
