// Cosines of a table's rows against a plain computation of all of them.
#include <tiffin/analysis/geometry.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace analysis_geometry_test {
using namespace tiffin;

namespace {

struct held_table {
    std::size_t rows, width;
    std::vector<float> numbers;

    held_table(std::size_t rows_, std::size_t width_)
        : rows(rows_), width(width_), numbers(tiffin_test::random_rows(rows_, width_, 5)) {}
    [[nodiscard]] in_memory store() const {
        return *in_memory::view({numbers.data(), dtype::f32, {rows, width}});
    }
    [[nodiscard]] double cosine(std::size_t a, std::size_t b) const {
        double product = 0, aa = 0, bb = 0;
        for (std::size_t i = 0; i < width; ++i) {
            const double x = static_cast<double>(numbers[a * width + i]),
                         y = static_cast<double>(numbers[b * width + i]);
            product += x * y;
            aa += x * x;
            bb += y * y;
        }
        return product / std::sqrt(aa * bb);
    }
};

}  // namespace

TEST_CASE("geometry: nearest rows, against all cosines sorted") {
    const held_table t(700, 24);  // three batches, the last one short
    std::size_t calls = 0, last = 0;
    const auto found = nearest_rows(t.store(), 300, 9, [&](std::size_t done) { ++calls, last = done; });
    REQUIRE(found.ok());
    CHECK(calls == 3);
    CHECK(last == 700);
    std::vector<std::int32_t> order(t.rows);
    std::iota(order.begin(), order.end(), 0);
    std::erase(order, 300);
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return t.cosine(300, static_cast<std::size_t>(a)) > t.cosine(300, static_cast<std::size_t>(b));
    });
    REQUIRE(found->size() == 9);
    for (std::size_t i = 0; i < 9; ++i) {
        CHECK((*found)[i].id == order[i]);
        // Some 24 roundings of half an ulp in each of three sums.
        CHECK(std::fabs((*found)[i].cosine - t.cosine(300, static_cast<std::size_t>(order[i]))) <
              100 * 0x1p-53);
    }
    CHECK(nearest_rows(t.store(), 300, 5000)->size() == 699);
    CHECK(nearest_rows(t.store(), 300, 0)->empty());
}

TEST_CASE("geometry: equal rows, zeros, and numbers that are none") {
    held_table t(6, 4);
    for (std::size_t i = 0; i < 4; ++i) {
        t.numbers[1 * 4 + i] = 2 * t.numbers[i];  // exactly: cosine 1
        t.numbers[2 * 4 + i] = 4 * t.numbers[i];
        t.numbers[3 * 4 + i] = 0;
        t.numbers[4 * 4 + i] = std::nanf("");
        t.numbers[5 * 4 + i] = -t.numbers[i];
    }
    const auto found = nearest_rows(t.store(), 0, 9);
    REQUIRE(found.ok());
    REQUIRE(found->size() == 3);
    CHECK((*found)[0].id == 1);
    CHECK((*found)[1].id == 2);
    CHECK((*found)[2].id == 5);
    CHECK((*found)[0].cosine == 1);
    CHECK((*found)[2].cosine == -1);
    CHECK(nearest_rows(t.store(), 3, 2).failure().code == errc::option);
    CHECK(nearest_rows(t.store(), 4, 2).failure().code == errc::option);
    CHECK(nearest_rows(t.store(), 6, 2).failure().code == errc::token_id);

    const auto sampled = sample_cosines(t.store(), 2000);
    REQUIRE(sampled.ok());
    CHECK(sampled->pairs + sampled->without_direction == 2000);
    // Of 30 ordered pairs 12 have two directions: a share of 0.4, within five standard deviations.
    CHECK(std::fabs(static_cast<double>(sampled->pairs) - 800) < 5 * std::sqrt(2000 * 0.4 * 0.6));
    CHECK(sampled->least == -1);
    CHECK(sampled->largest == 1);
    CHECK(sampled->bins[0] + sampled->bins[199] == sampled->pairs);
    CHECK(sampled->quantile(1) == doctest::Approx(1));
}

TEST_CASE("geometry: the distribution of all pairs") {
    const held_table t(60, 16);
    double sum = 0, squares = 0;
    for (std::size_t a = 0; a < t.rows; ++a)
        for (std::size_t b = 0; b < t.rows; ++b)
            if (a != b) sum += t.cosine(a, b), squares += t.cosine(a, b) * t.cosine(a, b);
    const double n = 60.0 * 59, mean = sum / n, deviation = std::sqrt(squares / n - mean * mean);
    constexpr std::uint64_t pairs = 40000;
    std::uint64_t told = 0;
    const auto found = sample_cosines(t.store(), pairs, 7, [&](std::uint64_t done) { told = done; });
    REQUIRE(found.ok());
    CHECK(told == pairs);
    CHECK(found->pairs == pairs);
    // Five standard errors of a mean of independent draws, and as much of their deviation.
    const double error = 5 * deviation / std::sqrt(static_cast<double>(pairs));
    CHECK(std::fabs(found->mean - mean) < error);
    CHECK(std::fabs(found->deviation - deviation) < error);
    CHECK(std::accumulate(found->bins.begin(), found->bins.end(), std::uint64_t{0}) == pairs);
    CHECK(found->quantile(0.5) > mean - 0.1);
    CHECK(found->quantile(0.5) < mean + 0.1);
    CHECK(found->quantile(0.1) < found->quantile(0.9));
    const auto again = sample_cosines(t.store(), pairs, 7), other = sample_cosines(t.store(), pairs, 8);
    CHECK(again->bins == found->bins);
    CHECK(other->bins != found->bins);
    CHECK(sample_cosines(t.store(), 0)->quantile(0.5) == 0);
    CHECK(sample_cosines(held_table(1, 4).store(), 5).failure().code == errc::option);
}

TEST_CASE("geometry: a store that fails") {
    const from_callback broken({9, 4, dtype::f32}, [](std::span<const std::int32_t>, std::byte*) -> status {
        return failure(errc::file, "table", "is away");
    });
    CHECK(sample_cosines(broken, 5).failure().code == errc::file);
    CHECK(nearest_rows(broken, 1, 5).failure().code == errc::file);
}

}  // namespace analysis_geometry_test
