// Routers: order, ties, bias and what is no number.
#include <tiffin/router/selection.hpp>
#include <tiffin/router/sigmoid.hpp>
#include <tiffin/router/softmax.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

namespace router_router_test {
using namespace tiffin;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

// As every backend calls it: in double, whatever the logits are.
template <class S, class Router>
std::vector<choice<S>> chosen_by(const Router& router, const std::vector<S>& logits,
                                 const std::vector<S>& bias = {}) {
    std::vector<double> scratch(2 * logits.size());
    std::vector<choice<S>> chosen(router.top_k);
    choose(router, logits.data(), logits.size(), bias.empty() ? nullptr : bias.data(), scratch.data(),
           chosen.data());
    return chosen;
}

template <class S>
std::vector<std::int32_t> experts_of(const std::vector<choice<S>>& chosen) {
    std::vector<std::int32_t> all;
    for (const choice<S>& c : chosen) all.push_back(c.expert);
    return all;
}

// The definitions of docs/layers.md#routers, by sorting.
template <class Router>
std::vector<choice<double>> by_definition(const Router& router, const std::vector<double>& logits,
                                          const std::vector<double>& bias) {
    const std::size_t n = logits.size(), k = router.top_k;
    std::vector<double> score(n);
    double total = 0;
    for (const double l : logits) total += std::exp(l);
    for (std::size_t i = 0; i < n; ++i)
        score[i] = std::same_as<Router, topk_softmax>          ? logits[i]
                   : std::same_as<Router, sigmoid_topk_renorm> ? 1 / (1 + std::exp(-logits[i]))
                                                               : std::exp(logits[i]) / total;
    std::vector<std::size_t> sorted(n);
    std::iota(sorted.begin(), sorted.end(), std::size_t{0});
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](std::size_t a, std::size_t b) { return score[a] + bias[a] > score[b] + bias[b]; });
    double sum = 0;
    for (std::size_t i = 0; i < k; ++i)
        sum += std::same_as<Router, topk_softmax> ? std::exp(score[sorted[i]]) : score[sorted[i]];
    std::vector<choice<double>> all;
    for (std::size_t i = 0; i < k; ++i) {
        const double s = score[sorted[i]];
        all.push_back({static_cast<std::int32_t>(sorted[i]), std::same_as<Router, softmax_topk> ? s
                                                             : std::same_as<Router, topk_softmax>
                                                                 ? std::exp(s) / sum
                                                                 : s / sum});
    }
    return all;
}

#define LEARNED_ROUTERS softmax_topk, softmax_topk_renorm, topk_softmax, sigmoid_topk_renorm

}  // namespace

TEST_CASE_TEMPLATE("routers: each order is its definition, with a bias and without", Router,
                   LEARNED_ROUTERS) {
    tiffin_test::random_numbers random(3);
    for (const std::size_t n : {1u, 2u, 5u, 16u, 33u})
        for (std::size_t k = 1; k <= n; k += 1 + n / 4)
            for (const bool biased : {false, true}) {
                CAPTURE(n);
                CAPTURE(k);
                const Router router{k};
                std::vector<double> logits(n), bias(n, 0.0);
                for (double& l : logits) l = static_cast<double>(random.signed_unit(3.0f));
                if (biased)
                    for (double& b : bias) b = static_cast<double>(random.signed_unit(1.0f));
                const auto chosen = chosen_by(router, logits, biased ? bias : std::vector<double>{});
                const auto wanted = by_definition(router, logits, bias);
                CHECK(experts_of(chosen) == experts_of(wanted));
                // Both in double, sums of up to 33 terms of one sign: some 40 roundings apart at most.
                for (std::size_t i = 0; i < k; ++i)
                    CHECK(std::abs(chosen[i].weight - wanted[i].weight) <= 40 * 0x1p-53 * wanted[i].weight);
            }
}

TEST_CASE("routers: ties go to the lower index") {
    const std::vector<float> equal(7, 0.25f);
    CHECK(experts_of(chosen_by(softmax_topk{3}, equal)) == std::vector<std::int32_t>{0, 1, 2});
    const std::vector<float> some{1.0f, 2.0f, 0.0f, 2.0f, 1.0f};
    CHECK(experts_of(chosen_by(sigmoid_topk_renorm{4}, some)) == std::vector<std::int32_t>{1, 3, 0, 4});
    // Both probabilities round to 0, and both sigmoids to 1; the logits still tell them apart.
    CHECK(experts_of(chosen_by(softmax_topk{3}, std::vector<float>{-300.0f, 0.0f, -200.0f})) ==
          std::vector<std::int32_t>{1, 2, 0});
    CHECK(experts_of(chosen_by(sigmoid_topk_renorm{1}, std::vector<float>{100.0f, 200.0f})) ==
          std::vector<std::int32_t>{1});
}

TEST_CASE("routers: a bias chooses, and does not weigh") {
    const std::vector<float> logits{3.0f, 1.0f, 2.0f}, bias{-5.0f, 0.0f, 0.0f};
    const auto chosen = chosen_by(softmax_topk_renorm{2}, logits, bias);
    CHECK(experts_of(chosen) == std::vector<std::int32_t>{2, 1});
    CHECK(chosen[0].weight == doctest::Approx(1 / (1 + std::exp(-1.0))));
}

TEST_CASE("routers: weights are the limit where every score underflows") {
    // sigmoid(g) = e^g (1 - e^g + ...): below -90 the ratio of two is e^(difference) to more than 53 bits.
    const double first = 1 / (1 + std::exp(-1.0));
    for (const double far : {-90.0, -200.0, -1e4, -1e30}) {
        CAPTURE(far);
        const double step = far < -1e10 ? 0 : 1;  // beyond 2^53 neighbours are more than 1 apart
        const std::vector<double> logits{far - step, far, far - 3e30};
        const auto chosen = chosen_by(sigmoid_topk_renorm{2}, logits);
        const auto narrow =
            chosen_by(sigmoid_topk_renorm{2}, std::vector<float>(logits.begin(), logits.end()));
        const double wanted = step == 0 ? 0.5 : first;
        CHECK(std::abs(chosen[0].weight - wanted) <= 8 * 0x1p-53);
        CHECK(std::abs(chosen[1].weight - (1 - wanted)) <= 8 * 0x1p-53);
        CHECK(std::abs(static_cast<double>(narrow[0].weight) - wanted) <= 0x1p-24);
    }
    // One of the chosen far below 0, one above: nothing of the first is left.
    const auto mixed = chosen_by(sigmoid_topk_renorm{2}, std::vector<float>{-300.0f, 2.0f});
    CHECK(mixed[0].weight == 1.0f);
    CHECK(mixed[1].weight == 0.0f);

    // A bias picks experts whose probabilities underflow in f32, and at -1e4 in double too.
    for (const float depth : {1.0f, 100.0f}) {
        const std::vector<float> logits{0.0f, -150.0f * depth, -150.0f * depth - 10}, bias{0.0f, 9.0f, 9.0f};
        const auto chosen = chosen_by(softmax_topk_renorm{2}, logits, bias);
        CHECK(experts_of(chosen) == std::vector<std::int32_t>{1, 2});
        const double wanted = 1 / (1 + std::exp(-10.0));
        CHECK(std::abs(static_cast<double>(chosen[0].weight) - wanted) <= 0x1p-24);
        CHECK(std::abs(static_cast<double>(chosen[1].weight) - (1 - wanted)) <= 0x1p-24);
    }
}

TEST_CASE("routers: with a bias the scores are compared in double") {
    // In f32 all three sigmoids are 1; in double those of 40 and 50 are.
    const std::vector<float> logits{30.0f, 40.0f, 50.0f}, zeros(3, 0.0f);
    CHECK(experts_of(chosen_by(sigmoid_topk_renorm{2}, logits, zeros)) == std::vector<std::int32_t>{1, 2});
    CHECK(experts_of(chosen_by(sigmoid_topk_renorm{2}, logits)) == std::vector<std::int32_t>{2, 1});
}

TEST_CASE_TEMPLATE("routers: whatever the logits, the experts are different ones that exist", Router,
                   LEARNED_ROUTERS) {
    tiffin_test::random_numbers random(11);
    const std::vector<float> strange{nan_value, infinity, -infinity, 0.0f, 3e38f, -3e38f, 1e-40f};
    for (int round = 0; round < 400; ++round) {
        std::vector<float> logits(1 + random.below(9)), bias(logits.size());
        for (float& l : logits) l = strange[random.below(strange.size())];
        for (float& b : bias) b = strange[random.below(strange.size())];
        {
            const Router router{1 + random.below(logits.size())};
            const auto chosen = chosen_by(router, logits, round % 2 ? bias : std::vector<float>{});
            const auto experts = experts_of(chosen);
            CHECK(std::set<std::int32_t>(experts.begin(), experts.end()).size() == router.top_k);
            for (const std::int32_t e : experts)
                CHECK((e >= 0 && e < static_cast<std::int32_t>(logits.size())));
            CHECK(experts == experts_of(chosen_by(router, logits, round % 2 ? bias : std::vector<float>{})));
        }
    }
}

TEST_CASE("routers: numbers first, NaN last") {
    CHECK(experts_of(chosen_by(topk_softmax{3}, std::vector<float>{nan_value, -infinity, nan_value, 1.0f})) ==
          std::vector<std::int32_t>{3, 1, 0});
}

}  // namespace router_router_test
