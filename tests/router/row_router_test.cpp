// Routers of rows: the best of all sums by search, ties, what is no number, ranges, tables that layers share.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/train/prepare_training.hpp>
#include <tiffin/train/reference.hpp>
#include <tiffin/train/simd.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

namespace router_row_router_test {
using namespace tiffin;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

// As every backend calls it: in double, from scores of f32.
std::vector<choice<float>> picked(std::size_t top_k, const std::vector<float>& scores) {
    std::vector<choice<float>> chosen(top_k);
    std::vector<ranked<double>> scratch(3 * top_k);
    std::vector<double> weights(top_k);
    product_keys{top_k}.pick(scores.data(), scores.size() / 2, scratch.data(), weights.data(), chosen.data());
    return chosen;
}

// Scores of many magnitudes, of which the larger swallow the smaller in a sum, and zeros of both signs.
std::vector<float> scores_that_absorb(std::size_t keys, tiffin_test::random_numbers& random) {
    constexpr float some[]{0.0f, -0.0f, 1.0f, -1.0f, 1e-20f, -1e-20f, 3e-20f, 1e10f, -1e10f, 1e30f};
    std::vector<float> scores(2 * keys), at(2 * keys);
    random.fill(at, 1.0f);
    for (std::size_t i = 0; i < scores.size(); ++i)
        scores[i] = some[static_cast<std::size_t>(std::abs(at[i]) * 1e4f) % std::size(some)];
    return scores;
}

// All sums, sorted.
std::vector<choice<float>> by_search(std::size_t top_k, const std::vector<float>& scores) {
    const std::size_t keys = scores.size() / 2;
    std::vector<double> sums;
    for (std::size_t i = 0; i < keys; ++i)
        for (std::size_t j = 0; j < keys; ++j)
            sums.push_back(static_cast<double>(scores[i]) + static_cast<double>(scores[keys + j]));
    std::vector<std::size_t> rows(sums.size());
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    std::stable_sort(rows.begin(), rows.end(), [&](std::size_t a, std::size_t b) {
        return sums[a] > sums[b] || (std::isnan(sums[b]) && !std::isnan(sums[a]));
    });
    double total = 0;
    for (std::size_t i = 0; i < top_k; ++i) total += std::exp(sums[rows[i]] - sums[rows[0]]);
    std::vector<choice<float>> best;
    for (std::size_t i = 0; i < top_k; ++i)
        best.push_back({static_cast<std::int32_t>(rows[i]),
                        static_cast<float>(std::exp(sums[rows[i]] - sums[rows[0]]) / total)});
    return best;
}

struct two_rows : product_key_memory {
    constexpr two_rows() { router.top_k = 2; }
};

}  // namespace

TEST_CASE("product keys: the best of all sums") {
    tiffin_test::random_numbers random(3);
    for (const std::size_t keys : {1u, 2u, 3u, 7u, 32u, 61u})
        for (std::size_t top_k = 1; top_k <= keys; top_k += 1 + top_k / 3)
            for (int round = 0; round < 30; ++round) {
                std::vector<float> scores(2 * keys);
                random.fill(scores, 3.0f);
                // Whole numbers, of which many sums are equal, and numbers of which many sums are rounded to equal ones.
                if (round % 3 == 1)
                    for (float& s : scores) s = std::round(s);
                if (round % 3 == 2) scores = scores_that_absorb(keys, random);
                const auto chosen = picked(top_k, scores), wanted = by_search(top_k, scores);
                for (std::size_t i = 0; i < top_k; ++i) {
                    CAPTURE(keys);
                    CAPTURE(top_k);
                    CHECK(chosen[i].expert == wanted[i].expert);
                    // A softmax in double, rounded once: an ulp where its sum is added up in another order.
                    CHECK(std::abs(chosen[i].weight - wanted[i].weight) <= 0x1p-23f * wanted[i].weight);
                }
            }
}

TEST_CASE("product keys: the best of all sums where scores are infinite or NaN") {
    constexpr float inf = std::numeric_limits<float>::infinity();
    tiffin_test::random_numbers random(4);
    for (const std::size_t keys : {2u, 3u, 9u})
        for (std::size_t top_k = 1; top_k <= keys; ++top_k)
            for (const float strange : {nan_value, inf, -inf})
                for (int round = 0; round < 20; ++round) {
                    std::vector<float> scores = scores_that_absorb(keys, random), where(2 * keys);
                    random.fill(where, 1.0f);
                    for (std::size_t i = 0; i < scores.size(); ++i)
                        if (where[i] > 0.3f) scores[i] = strange;
                    CAPTURE(keys);
                    CAPTURE(top_k);
                    CAPTURE(strange);
                    const auto chosen = picked(top_k, scores), wanted = by_search(top_k, scores);
                    for (std::size_t i = 0; i < top_k; ++i) {
                        CHECK(chosen[i].expert == wanted[i].expert);
                        CHECK(std::isnan(chosen[i].weight) == std::isnan(wanted[i].weight));
                    }
                }
    // inf - inf: rows of the table, each once, with weights that are NaN.
    for (int round = 0; round < 200; ++round) {
        std::vector<float> scores = scores_that_absorb(5, random), where(10);
        random.fill(where, 1.0f);
        for (std::size_t i = 0; i < 10; ++i)
            if (where[i] > 0.2f) scores[i] = i < 5 ? inf : -inf;
        scores[0] = inf;
        scores[7] = -inf;
        const auto chosen = picked(4, scores);
        for (std::size_t i = 0; i < 4; ++i) {
            CHECK(chosen[i].expert >= 0);
            CHECK(chosen[i].expert < 25);
            CHECK(std::isnan(chosen[i].weight));
            for (std::size_t j = 0; j < i; ++j) CHECK(chosen[j].expert != chosen[i].expert);
        }
    }
}

TEST_CASE("product keys: NaN comes last, and rows differ") {
    const auto chosen = picked(3, {nan_value, 1, 2, 5, nan_value, nan_value});
    // Two numbers of the first half, one of the second: two sums are numbers.
    CHECK(chosen[0].expert == 2 * 3 + 0);
    CHECK(chosen[1].expert == 1 * 3 + 0);
    CHECK(chosen[2].expert != chosen[0].expert);
    CHECK(chosen[2].expert != chosen[1].expert);
    for (const choice<float>& one : picked(3, std::vector<float>(6, nan_value))) {
        CHECK(one.expert >= 0);
        CHECK(one.expert < 9);
    }
    // All equal: the lowest rows.
    const auto equal = picked(3, std::vector<float>(8, 0.5f));
    for (std::int32_t i = 0; i < 3; ++i) CHECK(equal[static_cast<std::size_t>(i)].expert == i);
}

TEST_CASE("row routers: routes as they are recorded, the same on every backend") {
    constexpr std::size_t tokens = 13, d = 24, vocab = 6;
    tiffin_test::tensor_set::options how{{d, 1, vocab, 49, 5}, {}, {}, ~0u, 5};
    const std::vector<float> x = tiffin_test::random_rows(tokens, d, 3);
    const std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, vocab, 7);
    const auto routes_by = [&](const auto& block, const auto& backend, const weights& given) {
        auto made = prepare(block, given, backend);
        std::vector<float> y(tokens * d);
        std::vector<choice<float>> routes(tokens * made.choices());
        token_inputs inputs{.token_ids = ids};
        inputs.routes = routes;
        made.try_call(x, inputs, y).or_throw();
        return routes;
    };
    const auto agree = [](const std::vector<choice<float>>& a, const std::vector<choice<float>>& b) {
        REQUIRE(a.size() == b.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
            CHECK(a[i].expert == b[i].expert);
            // Scores are sums of d and of `half` products in f32, and weights move as fast as they do.
            CHECK(std::abs(a[i].weight - b[i].weight) <= (d + 5) * 0x1p-22f * std::abs(a[i].weight));
        }
    };
    const two_rows keyed;
    const tiffin_test::tensor_set key_tensors = tiffin_test::tensor_set::of(keyed, how);
    const auto by_keys = routes_by(keyed, reference{}, key_tensors.given());
    CHECK(by_keys.size() == tokens * 2 * 2);
    agree(routes_by(keyed, simd{}, key_tensors.given()), by_keys);
    agree(routes_by(keyed, eigen{}, key_tensors.given()), by_keys);

    const tiffin_test::tensor_set range_tensors = tiffin_test::tensor_set::of(l3{}, how);
    const auto by_range = routes_by(l3{}, reference{}, range_tensors.given());
    const auto* const ranges = static_cast<const std::int32_t*>(range_tensors.view("ranges").data);
    for (std::size_t t = 0; t < tokens; ++t) {
        const auto id = static_cast<std::size_t>(ids[t]);
        double total = 0;
        for (std::size_t i = 0; i < 49; ++i) {
            const choice<float>& one = by_range[t * 49 + i];
            const std::int32_t row = ranges[2 * id] + static_cast<std::int32_t>(i);
            CHECK(one.expert == (row < ranges[2 * id + 1] ? row : -1));
            if (one.expert < 0) CHECK(one.weight == 0);
            total += static_cast<double>(one.weight);
        }
        const bool some = ranges[2 * id] < ranges[2 * id + 1];
        CHECK(std::abs(total - (some ? 1 : 0)) <= 49 * 0x1p-24);
    }
    agree(routes_by(l3{}, simd{}, range_tensors.given()), by_range);
    agree(routes_by(l3{}, eigen{}, range_tensors.given()), by_range);
}

TEST_CASE("product keys: sums that rounding made equal, on every backend") {
    // Both sums with the 1 of the second half are 1, and those with its 0 are 0 and 1e-20.
    const std::vector<float> query{1, 1}, keys{0, 1e-20f, 1, 0}, values{10, 11, 12, 13}, x{1};
    weights given;
    given.add("query.weight", {query.data(), dtype::f32, {2, 1}});
    given.add("keys.weight", {keys.data(), dtype::f32, {2, 2, 1}});
    given.add("values.weight", {values.data(), dtype::f32, {4, 1}});
    const auto row_by = [&](const auto& backend, std::size_t top_k) {
        product_key_memory block;
        block.router.top_k = top_k;
        auto made = prepare(block, given, backend);
        std::vector<float> y(1);
        std::vector<choice<float>> routes(top_k);
        token_inputs inputs;
        inputs.routes = routes;
        made.try_call(x, inputs, y).or_throw();
        return routes;
    };
    for (const std::size_t top_k : {1u, 2u}) {
        CAPTURE(top_k);
        for (const auto& routes :
             {row_by(reference{}, top_k), row_by(simd{}, top_k), row_by(eigen{}, top_k)}) {
            CHECK(routes[0].expert == 0);
            if (top_k == 2) CHECK(routes[1].expert == 2);
        }
    }
    const auto row_learnt_by = [&](const auto& backend) {
        using number = training_number<std::remove_cvref_t<decltype(backend)>>;
        product_key_memory block;
        block.router.top_k = 1;
        auto made = prepare_training(block, given, backend, {.tokens = 1});
        const std::vector<number> in{1};
        std::vector<number> y(1);
        std::vector<choice<float>> routes(1);
        training_inputs<number> inputs;
        inputs.routes = routes;
        made.forward(in, inputs, y);
        return routes[0].expert;
    };
    CHECK(row_learnt_by(reference<>{}) == 0);
    CHECK(row_learnt_by(simd<>{}) == 0);
}

TEST_CASE("row routers: layers share a table where it lies") {
    constexpr std::size_t d = 16;
    const tiffin_test::tensor_set a =
        tiffin_test::tensor_set::of(two_rows{}, {{d, 1, 1, 25, 3}, {}, {}, ~0u, 5});
    const tiffin_test::tensor_set b =
        tiffin_test::tensor_set::of(two_rows{}, {{d, 1, 1, 25, 3}, {}, {}, ~0u, 6});
    const tensor_view values = a.view("values.weight");
    const weights own = b.given();
    weights of_b;
    for (const weights::entry& e : own.entries())
        of_b.add(e.name, e.name == "values.weight" ? values : e.tensor);
    for (const weights& given : {a.given(), of_b}) {
        const auto made = prepare(two_rows{}, given, simd{});
        const auto& in_place = made.reads_in_place();
        CHECK(std::find(in_place.begin(), in_place.end(), "values.weight") != in_place.end());
    }
}

}  // namespace router_row_router_test
