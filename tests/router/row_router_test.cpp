// Routers of rows: the best of all sums by search, ties, what is no number, ranges, tables that layers share.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

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
            for (int round = 0; round < 20; ++round) {
                std::vector<float> scores(2 * keys);
                random.fill(scores, 3.0f);
                // Every other time whole numbers, of which many sums are equal.
                if (round % 2 == 1)
                    for (float& s : scores) s = std::round(s);
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
