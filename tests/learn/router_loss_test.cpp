// Losses on a router's logits: their values against analysis/balance.hpp and the formulas in long double, their gradients
// against central differences, alone and through a mixture that learns.
#include <tiffin/learn/router_loss.hpp>

#include <tiffin/analysis/balance.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/train/reference.hpp>

#include "support/doctest.hpp"
#include "support/gradients.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace learn_router_loss_test {
using namespace tiffin;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// Logits in [level - scale, level + scale), and k different experts for each token, low ones more often.
template <class Number>
struct routed {
    std::size_t tokens, experts, k;
    std::vector<Number> logits, gradient;  // (T, E)
    std::vector<choice<float>> routes;

    routed(const routing_shape& s, float scale = 1, float level = 0, std::uint32_t seed = 1)
        : tokens(s.tokens),
          experts(s.experts),
          k(s.k),
          logits(s.tokens * s.experts),
          gradient(logits.size()) {
        tiffin_test::random_numbers random(seed);
        for (Number& g : logits) g = static_cast<Number>(level + random.signed_unit(scale));
        for (std::size_t t = 0; t < tokens; ++t) {
            const std::size_t first = random.below(1 + random.below(experts));
            for (std::size_t i = 0; i < k; ++i)
                routes.push_back({static_cast<std::int32_t>((first + i) % experts), 0.5f});
        }
    }
    result<double> run(const router_loss_weights& weights) {
        return router_loss(weights)(matrix_view<const Number>(logits.data(), tokens, experts), routes,
                                    matrix_view<Number>(gradient.data(), tokens, experts));
    }
    double loss(const router_loss_weights& weights) {
        const result<double> value = run(weights);
        REQUIRE(value.ok());
        return *value;
    }
    [[nodiscard]] std::vector<std::int32_t> chosen() const {
        std::vector<std::int32_t> all;
        for (const auto& c : routes) all.push_back(c.expert);
        return all;
    }
    [[nodiscard]] long double share(std::size_t e) const {
        const auto all = chosen();
        const auto n = std::count(all.begin(), all.end(), static_cast<std::int32_t>(e));
        return static_cast<long double>(n) / static_cast<long double>(all.size());
    }
};

// The three losses in long double, as the specification has them.
struct formulas {
    long double switch_balance = 0, mort_balance = 0, z = 0;
    long double size = 0;  // the largest |logsumexp|

    template <class Number>
    explicit formulas(const routed<Number>& r) {
        const auto T = static_cast<long double>(r.tokens), E = static_cast<long double>(r.experts);
        for (std::size_t t = 0; t < r.tokens; ++t) {
            const auto logit = [&](std::size_t e) {
                return static_cast<long double>(r.logits[t * r.experts + e]);
            };
            const auto sigmoid = [&](std::size_t e) { return 1 / (1 + std::exp(-logit(e))); };
            long double exps = 0, sigmoids = 0;
            for (std::size_t e = 0; e < r.experts; ++e) {
                exps += std::exp(logit(e));
                sigmoids += sigmoid(e);
            }
            for (std::size_t e = 0; e < r.experts; ++e) {
                switch_balance += E / T * r.share(e) * std::exp(logit(e)) / exps;
                mort_balance += E / T * r.share(e) * sigmoid(e) / sigmoids;
            }
            z += std::log(exps) * std::log(exps) / T;
            size = std::max(size, std::fabs(std::log(exps)));
        }
    }
};

// What a loss in double may be off by, of itself. A probability: the difference from the largest is off by 2^-53 of
// itself, at most 2 (|g| + log 2) of a logit or its log-sigmoid, which has 4 roundings of its own; then exp, E additions,
// a quotient. The loss: E + T additions of numbers none of which is negative, some products.
double relative_bound(std::size_t tokens, std::size_t experts, double largest) {
    return (static_cast<double>(tokens + 2 * experts) + 4 * (largest + 4) + 16) * 0x1p-53;
}

const std::vector<routing_shape> shapes{{1, 1, 1},  {1, 2, 1},   {3, 5, 2},
                                        {17, 7, 7}, {64, 16, 1}, {41, 33, 5}};

// Where logits lie.
struct spread {
    float scale, level;
};
template <class F>
void for_cases(const F& use) {
    std::uint32_t seed = 0;
    for (const routing_shape& shape : shapes)
        for (const spread& logits : {spread{1, 0}, {20, 0}, {3, -30}, {3, 30}}) {
            CAPTURE(shape.tokens);
            CAPTURE(shape.experts);
            CAPTURE(logits.scale);
            CAPTURE(logits.level);
            use(shape, logits.scale, logits.level, ++seed);
        }
}

}  // namespace

TEST_CASE_TEMPLATE("router loss: values are the formulas'", Number, double, float) {
    for_cases([](const routing_shape& shape, float scale, float level, std::uint32_t seed) {
        routed<Number> r(shape, scale, level, seed);
        const formulas want(r);
        const double largest = static_cast<double>(std::fabs(level) + scale);
        const double bound = relative_bound(shape.tokens, shape.experts, largest);
        const auto close = [&](double got, long double exact, double relative) {
            CHECK(std::fabs(static_cast<long double>(got) - exact) <= relative * std::fabs(exact));
        };
        close(r.loss({.switch_balance = 1}), want.switch_balance, bound);
        close(r.loss({.switch_balance = 0.01}), want.switch_balance * 0.01L, bound);
        close(r.loss({.mort_balance = 1e-4}), want.mort_balance * 1e-4L, bound);
        // logsumexp is off by `bound` and by 2^-53 of itself, absolutely: its square by twice that times itself.
        const auto size = static_cast<double>(want.size);
        const double squares = 2 * size * (bound + size * 0x1p-52) + static_cast<double>(want.z) * bound;
        CHECK(std::fabs(static_cast<long double>(r.loss({.z = 1})) - want.z) <= squares);
        const double all = r.loss({.switch_balance = 0.5, .mort_balance = 0.25, .z = 0.125});
        CHECK(std::fabs(static_cast<long double>(all) - (want.switch_balance / 2 + want.mort_balance / 4 +
                                                         want.z / 8)) <= bound * all + squares / 8);
        CHECK(r.loss({}) == 0);
    });
}

// The probabilities of switch_balance_loss are rounded to f32 here: 2^-24 of each, or of the smallest number.
TEST_CASE("router loss: values are those of analysis/balance.hpp") {
    for_cases([](const routing_shape& shape, float scale, float level, std::uint32_t seed) {
        routed<float> r(shape, scale, level, seed);
        std::vector<float> probabilities;
        for (std::size_t t = 0; t < r.tokens; ++t) {
            long double exps = 0;
            for (std::size_t e = 0; e < r.experts; ++e)
                exps += std::exp(static_cast<long double>(r.logits[t * r.experts + e]));
            for (std::size_t e = 0; e < r.experts; ++e)
                probabilities.push_back(static_cast<float>(
                    std::exp(static_cast<long double>(r.logits[t * r.experts + e])) / exps));
        }
        const double bound =
            2 * relative_bound(shape.tokens, shape.experts, static_cast<double>(std::fabs(level) + scale));
        const double of_switch = *switch_balance_loss(probabilities, r.chosen(), shape);
        CHECK(std::fabs(r.loss({.switch_balance = 0.01}) - of_switch) <=
              (0x1p-24 + bound) * of_switch + 0x1p-149 * static_cast<double>(shape.experts));
        const double of_mort = *mort_balance_loss(r.logits, r.chosen(), shape);
        CHECK(std::fabs(r.loss({.mort_balance = 1e-4}) - of_mort) <= bound * of_mort);
    });
}

TEST_CASE("router loss: by hand") {
    // Both tokens to expert 0; logits 0 and log 3: softmax 1/4 and 3/4, sigmoids 1/2 and 3/4.
    routed<double> r({2, 2, 1});
    for (auto& c : r.routes) c.expert = 0;
    r.logits = {0, std::log(3.0), 0, std::log(3.0)};
    const auto near = [](double v) { return doctest::Approx(v).epsilon(1e-14); };
    CHECK(r.loss({.switch_balance = 1}) == near(2 * 0.25));
    // E / T p_e (f_e - sum f p) = 1/4 (1 - 1/4), 3/4 (0 - 1/4).
    CHECK(r.gradient[0] == near(0.1875));
    CHECK(r.gradient[1] == near(-0.1875));
    r.gradient.assign(4, 0);
    CHECK(r.loss({.mort_balance = 1}) == near(2 * 0.4));
    // p = 2/5, 3/5; p_e (f_e - sum f p) sigmoid(-g_e) = 2/5 3/5 1/2, 3/5 (-2/5) 1/4.
    CHECK(r.gradient[0] == near(0.12));
    CHECK(r.gradient[1] == near(-0.06));
    r.gradient.assign(4, 0);
    // 2 / T log 4 softmax.
    CHECK(r.loss({.z = 1}) == near(std::log(4.0) * std::log(4.0)));
    CHECK(r.gradient[2] == near(std::log(4.0) / 4));
    CHECK(r.gradient[3] == near(std::log(4.0) * 0.75));
}

// Central differences over 2 h and h, extrapolated: off by f^(5) h^4 / 480. The fifth derivative of a probability with
// respect to a logit is below 30 (a sum of products of cumulants), that of logsumexp^2 below 2 |logsumexp| + 20; with
// h = 2^-10 both are below 1e-12 (1 + |logsumexp|) E / T. Losses off by their bound bring 3 / h times it.
TEST_CASE("router loss: gradients are the slopes of the values, with the routes as they are") {
    for (const routing_shape& shape : {routing_shape{1, 1, 1}, {1, 2, 1}, {3, 5, 2}, {7, 4, 4}, {5, 9, 3}})
        for (const spread& logits : {spread{2, 0}, {1, -9}, {1, 5}})
            for (const router_loss_weights& weights :
                 {router_loss_weights{.switch_balance = 1}, router_loss_weights{.mort_balance = 1},
                  router_loss_weights{.z = 1},
                  router_loss_weights{.switch_balance = 0.5, .mort_balance = 2, .z = 0.25}}) {
                CAPTURE(shape.tokens);
                CAPTURE(shape.experts);
                CAPTURE(logits.level);
                routed<double> r(shape, logits.scale, logits.level, 7);
                const double value = r.loss(weights);
                const std::vector<double> gradient = r.gradient;
                const double size = static_cast<double>(formulas(r).size);
                const double truncated = 1e-12 * (1 + size) * static_cast<double>(shape.experts);
                const double off =
                    3 * value * relative_bound(shape.tokens, shape.experts, 12) + 2 * size * size * 0x1p-52;
                constexpr double h = 0x1p-10;
                const auto difference = [&](std::size_t at, double by) {
                    const double before = std::exchange(r.logits[at], r.logits[at] + by);
                    const double above = r.loss(weights);
                    r.logits[at] = before - by;
                    const double below = r.loss(weights);
                    r.logits[at] = before;
                    return (above - below) / (2 * by);
                };
                for (std::size_t at = 0; at < gradient.size(); ++at) {
                    const double slope = (4 * difference(at, h / 2) - difference(at, h)) / 3;
                    CHECK(std::fabs(gradient[at] - slope) <= truncated + 3 * off / h);
                }
            }
}

TEST_CASE("router loss: gradients in f32 are those in double, rounded once") {
    for_cases([](const routing_shape& shape, float scale, float level, std::uint32_t seed) {
        for (const router_loss_weights& weights : {router_loss_weights{.switch_balance = 0.01, .z = 0.5},
                                                   router_loss_weights{.mort_balance = 1}}) {
            routed<float> narrow(shape, scale, level, seed);
            routed<double> wide(shape, scale, level, seed);
            std::copy(narrow.logits.begin(), narrow.logits.end(), wide.logits.begin());
            CHECK(narrow.loss(weights) == doctest::Approx(wide.loss(weights)).epsilon(1e-14));
            for (std::size_t i = 0; i < wide.gradient.size(); ++i) {
                const double exact = wide.gradient[i];
                // Two compilations of one formula in double differ by some 2^-53 of its terms, which are below 100.
                CHECK(std::fabs(static_cast<double>(narrow.gradient[i]) - exact) <=
                      0x1p-24 * std::fabs(exact) + 0x1p-44);
            }
        }
    });
}

TEST_CASE_TEMPLATE("router loss: gradients are added to what is there, row by row", Number, double, float) {
    const router_loss_weights weights{.switch_balance = 0.5, .mort_balance = 2, .z = 0.25};
    routed<Number> plain({6, 5, 2});
    const double value = plain.loss(weights);
    // The same with memory between the rows, of other strides.
    constexpr std::size_t stride = 8, other = 6;
    std::vector<Number> logits(6 * stride, Number(99)), gradient(6 * other, Number(3));
    for (std::size_t t = 0; t < 6; ++t)
        std::copy_n(plain.logits.begin() + static_cast<std::ptrdiff_t>(t * 5), 5,
                    logits.begin() + static_cast<std::ptrdiff_t>(t * stride));
    router_loss loss(weights);
    // Twice, by one object that has seen another number of experts between.
    for (int run = 1; run <= 2; ++run) {
        const auto got = loss(matrix_view<const Number>(logits.data(), 6, 5, stride), plain.routes,
                              matrix_view<Number>(gradient.data(), 6, 5, other));
        REQUIRE(got.ok());
        CHECK(*got == value);
        for (std::size_t t = 0; t < 6; ++t) {
            for (std::size_t e = 0; e < 5; ++e) {
                // Two additions each time, to a number below 8.
                const Number exact = Number(3) + Number(run) * plain.gradient[t * 5 + e];
                CHECK(std::fabs(gradient[t * other + e] - exact) <=
                      8 * 4 * std::numeric_limits<Number>::epsilon());
            }
            CHECK(gradient[t * other + 5] == 3);
        }
        routed<Number> wider({2, 11, 3}, 1, 0, 5), again = wider;
        REQUIRE(loss(matrix_view<const Number>(wider.logits.data(), 2, 11), wider.routes,
                     matrix_view<Number>(wider.gradient.data(), 2, 11))
                    .ok());
        again.loss(weights);
        CHECK(wider.gradient == again.gradient);
    }
}

TEST_CASE_TEMPLATE("router loss: logits far from 0", Number, double, float) {
    const router_loss_weights weights{.switch_balance = 1, .mort_balance = 1, .z = 1};
    const auto finite = [&](routed<Number>& r) {
        r.gradient.assign(r.gradient.size(), 0);
        CHECK(std::isfinite(r.loss(weights)));
        for (const Number g : r.gradient) CHECK(std::isfinite(g));
    };
    routed<Number> r({2, 3, 1});
    r.routes = {{0, 1.0f}, {0, 1.0f}};
    for (const double level : {1e4, -1e4, 1e-40, 0.0}) {
        CAPTURE(level);
        // All equal: probabilities of 1/3, whatever their level.
        r.logits.assign(6, static_cast<Number>(level));
        finite(r);
        CHECK(r.loss({.switch_balance = 1}) == doctest::Approx(1).epsilon(1e-12));
        CHECK(r.loss({.mort_balance = 1}) == doctest::Approx(1).epsilon(1e-12));
        const double sum = level + std::log(3.0);
        CHECK(r.loss({.z = 1}) == doctest::Approx(sum * sum).epsilon(1e-6));
    }
    // MoRT's probabilities are limits where sigmoids are 0: there sigmoid(-g) is 1, and the gradient the softmax's.
    r.logits = {-10000, -10001, -20000, -10000, -10001, -20000};
    finite(r);
    r.gradient.assign(6, 0);
    const double e = std::exp(1.0), p = e / (e + 1);
    CHECK(r.loss({.mort_balance = 1}) == doctest::Approx(3 * p).epsilon(1e-6));
    CHECK(static_cast<double>(r.gradient[0]) == doctest::Approx(1.5 * p * (1 - p)).epsilon(1e-6));
    CHECK(static_cast<double>(r.gradient[1]) == doctest::Approx(-1.5 * p * (1 - p)).epsilon(1e-6));
    CHECK(r.gradient[2] == 0);
    // All sigmoids 1: nothing moves them.
    r.logits = {10000, 10001, 20000, 10000, 10001, 20000};
    finite(r);
    r.gradient.assign(6, 0);
    CHECK(r.loss({.mort_balance = 1}) == doctest::Approx(1).epsilon(1e-12));
    for (const Number g : r.gradient) CHECK(g == 0);
    // One expert above all others, and one that cannot come.
    r.logits = {10000, -10000, 0, -10000, 0, 10000};
    finite(r);
    r.logits = {1, 2, static_cast<Number>(-infinity), static_cast<Number>(-infinity), 0, 1};
    finite(r);
    CHECK(r.gradient[2] == 0);
    CHECK(r.gradient[3] == 0);
    // NaN, and rows without a probability, are told.
    for (const double bad : {not_a_number, -infinity})
        for (const router_loss_weights& one :
             {router_loss_weights{.switch_balance = 1}, router_loss_weights{.mort_balance = 1},
              router_loss_weights{.z = 1}}) {
            CAPTURE(bad);
            r.logits.assign(6, static_cast<Number>(bad));
            CHECK(std::isnan(r.loss(one)));
            r.logits.assign(6, Number(0));
            r.logits[1] = static_cast<Number>(not_a_number);
            CHECK(std::isnan(r.loss(one)));
        }
    // 0: none of it, whatever the logits.
    r.gradient.assign(6, 2);
    CHECK(r.loss({}) == 0);
    CHECK(r.gradient == std::vector<Number>(6, 2));
}

// Tokens of two ranks, of 5 and 3, one after the other: what the first needs of the second is counted beforehand.
TEST_CASE("router loss: over ranks it is that of all tokens, each rank with its part of the gradient") {
    const router_loss_weights weights{.switch_balance = 0.5, .mort_balance = 2, .z = 0.25};
    routed<double> whole({8, 4, 2}, 2);
    const double loss = whole.loss(weights);
    std::vector<double> gradient(whole.gradient.size());
    // A rank's part, where the others bring `of_others`: what it has brought, before and after.
    const auto part = [&](std::size_t first, std::size_t tokens, std::vector<std::vector<double>> of_others) {
        std::vector<std::vector<double>> brought;
        const auto over_ranks = [&](std::span<double> numbers) {
            brought.emplace_back(numbers.begin(), numbers.end());
            if (brought.size() > of_others.size()) return;
            const std::vector<double>& more = of_others[brought.size() - 1];
            REQUIRE(more.size() == numbers.size());
            for (std::size_t i = 0; i < more.size(); ++i) numbers[i] += more[i];
        };
        const auto value =
            router_loss(weights)(matrix_view<const double>(whole.logits.data() + first * 4, tokens, 4),
                                 std::span<const choice<float>>(whole.routes).subspan(first * 2, tokens * 2),
                                 matrix_view<double>(gradient.data() + first * 4, tokens, 4), over_ranks);
        REQUIRE(value.ok());
        return std::pair(*value, brought);
    };
    std::vector<std::vector<double>> of_first = part(0, 5, {}).second, of_second = part(5, 3, {}).second;
    of_first.resize(1);
    of_second.resize(1);
    std::fill(gradient.begin(), gradient.end(), 0.0);
    // Losses last: each rank's is what its tokens have of it.
    const std::vector<double> second = part(5, 3, of_first).second[1];
    std::fill(gradient.begin() + 20, gradient.end(), 0.0);
    of_second.push_back(second);
    const auto [first_loss, first_brought] = part(0, 5, of_second);
    of_first.push_back(first_brought[1]);
    CHECK(part(5, 3, of_first).first == doctest::Approx(loss).epsilon(1e-14));
    CHECK(first_loss == doctest::Approx(loss).epsilon(1e-14));
    for (std::size_t i = 0; i < gradient.size(); ++i)
        CHECK(std::fabs(gradient[i] - whole.gradient[i]) <= 0x1p-50);
}

TEST_CASE("router loss: what is wrong on one rank is told on the others") {
    routed<double> here({3, 4, 1});
    std::vector<double> sent;
    const auto other_is_wrong = [](std::span<double> numbers) { numbers[0] = numbers[4] = not_a_number; };
    const auto listen = [&](std::span<double> numbers) { sent.assign(numbers.begin(), numbers.end()); };
    const auto run = [&](const std::function<void(std::span<double>)>& over_ranks) {
        return router_loss({.z = 1})(matrix_view<const double>(here.logits.data(), 3, 4), here.routes,
                                     matrix_view<double>(here.gradient.data(), 3, 4), over_ranks);
    };
    const auto refused = run(other_is_wrong);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.failure().code == errc::option);
    here.routes[1].expert = 4;
    CHECK_FALSE(run(listen).ok());
    CHECK(std::isnan(sent[4]));
    CHECK(here.gradient == std::vector<double>(12));
}

TEST_CASE("router loss: what is wrong is found before anything is written") {
    routed<float> r({4, 3, 2});
    std::vector<float> gradient(12, 5.0f);
    std::vector<choice<float>> routes = r.routes;
    using view = matrix_view<float>;
    const auto refused = [&](const matrix_view<const float>& logits, std::span<const choice<float>> chosen,
                             const view& to, errc code, std::string_view where, std::string_view what) {
        router_loss loss({.switch_balance = 1, .mort_balance = 1, .z = 1});
        const result<double> got = loss(logits, chosen, to);
        REQUIRE_FALSE(got.ok());
        CHECK(got.failure().code == code);
        CHECK(got.failure().where == where);
        CHECK(got.failure().what == what);
        CHECK(gradient == std::vector<float>(12, 5.0f));
    };
    const matrix_view<const float> logits(r.logits.data(), 4, 3);
    const view to(gradient.data(), 4, 3);
    refused({r.logits.data(), 0, 3}, {}, {gradient.data(), 0, 3}, errc::size, "logits", "is (0, 3)");
    refused({r.logits.data(), 4, 0}, {}, {gradient.data(), 4, 0}, errc::size, "logits", "is (4, 0)");
    refused(logits, routes, {gradient.data(), 3, 3}, errc::size, "d_logits",
            "is (3, 3); the logits are (4, 3)");
    refused(logits, routes, {gradient.data(), 4, 2}, errc::size, "d_logits",
            "is (4, 2); the logits are (4, 3)");
    refused({r.logits.data(), 4, 3, 2}, routes, to, errc::size, "logits",
            "has a row stride of 2, less than its width 3");
    refused(logits, routes, {gradient.data(), 4, 3, 1}, errc::size, "d_logits",
            "has a row stride of 1, less than its width 3");
    refused(logits, {}, to, errc::size, "routes", "has 0 choices for 4 tokens");
    refused(logits, std::span(routes).first(7), to, errc::size, "routes", "has 7 choices for 4 tokens");
    for (const std::int32_t outside : {3, -1}) {
        routes.back().expert = outside;
        refused(logits, routes, to, errc::option, "routes",
                "expert " + std::to_string(outside) + " lies outside [0, 3)");
    }
}

// sum y dy, and the losses on the logits: of the router's weight and of x. The shares have no gradient, so the routes
// must be the same on both sides of a difference; where they are not the slope is not smooth.
TEST_CASE("router loss: a mixture learns from it, and x too") {
    constexpr std::size_t d = 7, tokens = 6, experts = 4, k = 2;
    using block_type = mixture<softmax_topk, mlp>;
    block_type block;
    block.router.top_k = k;
    const auto tensors = tiffin_test::tensor_set::of(block, {{d, 10, 1, experts}, {}, {}, ~0u, 3});
    tiffin_test::double_tensors given(tensors);
    auto layer = prepare_training(block, given.given(), reference<>{}, {.tokens = tokens});
    const auto widened = [](const std::vector<float>& v) { return std::vector<double>(v.begin(), v.end()); };
    std::vector<double> x = widened(tiffin_test::random_rows(tokens, d, 1));
    const std::vector<double> dy = widened(tiffin_test::random_rows(tokens, d, 2));
    std::vector<double> y(tokens * d), dx(tokens * d), logits(tokens * experts), d_logits(tokens * experts);
    std::vector<choice<float>> routes(tokens * k);
    router_loss on_logits({.switch_balance = 3, .mort_balance = 2, .z = 0.5});
    const auto loss = [&] {
        layer.forward(x, {.routes = routes, .logits = {logits.data(), tokens, experts}}, y);
        std::fill(d_logits.begin(), d_logits.end(), 0.0);
        double sum = on_logits(matrix_view<const double>(logits.data(), tokens, experts), routes,
                               matrix_view<double>(d_logits.data(), tokens, experts))
                         .or_throw();
        for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
        return sum;
    };
    loss();
    double of_losses = 0;
    for (const double g : d_logits) of_losses = std::max(of_losses, std::fabs(g));
    CHECK(of_losses > 0.1);
    layer.backward(dy, {.x = {dx.data(), tokens, d}, .logits = {d_logits.data(), tokens, experts}});
    std::vector<double> router;
    for (const auto& g : layer.gradients())
        if (g.name == "router.weight") router.assign(g.data, g.data + experts * d);
    REQUIRE(router.size() == experts * d);
    const auto check = [&](double* numbers, const std::vector<double>& gradient) {
        std::size_t smooth = 0;
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            const auto by = tiffin_test::differentiate(loss, numbers[i], 1.0);
            if (!by.smooth) continue;
            ++smooth;
            CHECK(std::fabs(by.value - gradient[i]) <= 1e-6 * (std::fabs(by.value) + 1));
        }
        CHECK(smooth * 10 > gradient.size() * 9);
    };
    check(given.of("router.weight"), router);
    check(x.data(), dx);
}

}  // namespace learn_router_loss_test
