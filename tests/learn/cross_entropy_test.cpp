// The loss of a language model and its gradient against the formula in long double and central differences, in all
// sizes, and what becomes of infinity and NaN.
#include <tiffin/learn/cross_entropy.hpp>

#include <tiffin/executor/thread_team.hpp>
#include <tiffin/train/reference.hpp>
#include <tiffin/train/simd.hpp>

#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace learn_cross_entropy_test {
using namespace tiffin;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

template <class Backend>
using machine = typename training_machine<Backend>::type;

// Logits of some rows, with memory between them that must stay as it is.
template <class Backend>
struct batch {
    using number = training_number<Backend>;
    static constexpr number between = 77;

    std::size_t rows, vocab, stride;
    std::vector<number> logits;
    std::vector<std::int32_t> targets;
    std::vector<double> losses;
    number scale = 1;

    batch(std::size_t n, std::size_t v, std::size_t gap = 0)
        : rows(n), vocab(v), stride(v + gap), logits(n * stride, between), targets(n), losses(n, 55.0) {}
    // One row.
    batch(const std::vector<double>& row, std::int32_t target) : batch(1, row.size()) {
        for (std::size_t i = 0; i < vocab; ++i) logits[i] = static_cast<number>(row[i]);
        targets[0] = target;
    }
    void fill(std::uint32_t seed, float size) {
        tiffin_test::random_numbers random(seed);
        for (std::size_t t = 0; t < rows; ++t) {
            for (std::size_t i = 0; i < vocab; ++i)
                logits[t * stride + i] = static_cast<number>(random.signed_unit(size));
            targets[t] = static_cast<std::int32_t>(random.below(vocab));
        }
    }
    [[nodiscard]] std::span<const number> row(std::size_t t) const {
        return std::span(logits).subspan(t * stride, vocab);
    }
    status run(executor_ref execute = serially) {
        return softmax_cross_entropy(Backend{}, {logits.data(), rows, vocab, stride}, targets, scale, losses,
                                     execute);
    }
};

// The formula in long double.
struct exact_row {
    long double loss = 0;
    std::vector<long double> softmax;
    std::vector<long double> distance;  // of each logit from the largest
    long double mean_distance = 0;      // under the softmax

    template <class Number>
    exact_row(std::span<const Number> z, std::int32_t target) {
        const auto most = static_cast<long double>(*std::max_element(z.begin(), z.end()));
        long double sum = 0;
        for (const Number v : z) {
            distance.push_back(most - static_cast<long double>(v));
            softmax.push_back(std::exp(-distance.back()));
            sum += softmax.back();
        }
        for (std::size_t i = 0; i < softmax.size(); ++i) {
            softmax[i] /= sum;
            if (softmax[i] > 0) mean_distance += softmax[i] * distance[i];
        }
        loss = std::log(sum) + distance[static_cast<std::size_t>(target)];
    }
};

// What one row may differ from the formula by. u is the unit roundoff of the backend's number, D_i the distance of
// logit i from the largest, p the softmax; to the first order:
//   D_i          one rounding: exp(-D_i) is off by D_i u of itself;
//   exp          4 units in the last place (tests/support/bounded.hpp), 8 u; what is below the smallest normal number
//                may be 0: 2^-126 in f32;
//   the sum      31 additions in a register and up to 5 across it, of terms none of which is negative: 36 u; then
//                one addition in double for 32 registers, with 2^-53 each.
// So the sum is off by (A + 44) u + (V / 32 + 1) 2^-53 of itself, A = sum_i p_i D_i, and its logarithm absolutely by as
// much. The loss has two roundings of double more, of the logarithm and of D_target.
// Gradient i: the sum's error, scale / sum rounded to the number, exp(-D_i), and a product: (A + D_i + 54) u of
// scale p_i. Where scale is taken off, at the target, up to u scale more.
// 1.01 for what is of the second order.
template <class Backend>
struct row_bounds {
    static constexpr bool narrow = sizeof(training_number<Backend>) == 4;
    static constexpr long double u = narrow ? 0x1p-24L : 0x1p-53L;
    static constexpr long double flushed = narrow ? 0x1p-125L : 0x1p-1021L;

    const exact_row& exact;
    long double sum = 0;

    explicit row_bounds(const exact_row& row) : exact(row) {
        const auto v = static_cast<long double>(row.softmax.size());
        sum = 1.01L * ((row.mean_distance + 44) * u + (v / 32 + 1) * 0x1p-53L) + v * flushed;
    }
    [[nodiscard]] long double of_loss() const { return sum + 0x1p-52L * (exact.loss + 1); }
    // Times the scale.
    [[nodiscard]] long double of_gradient(std::size_t i, bool is_target) const {
        // Where the distance is infinite there is nothing to be off by.
        const long double own =
            exact.softmax[i] > 0 ? exact.softmax[i] * (sum + 1.01L * (exact.distance[i] + 10) * u) : 0;
        return own + flushed + (is_target ? u : 0);
    }
};

template <class Backend>
void check_rows(const batch<Backend>& given, const batch<Backend>& got) {
    using number = training_number<Backend>;
    std::size_t outside = 0;
    for (std::size_t t = 0; t < given.rows; ++t) {
        if (given.targets[t] == no_target) {
            CHECK(got.losses[t] == 0);
            for (const number g : got.row(t)) outside += g == 0 ? 0u : 1u;
            continue;
        }
        const exact_row exact(given.row(t), given.targets[t]);
        const row_bounds<Backend> bounds(exact);
        CHECK(std::fabs(static_cast<long double>(got.losses[t]) - exact.loss) <= bounds.of_loss());
        const auto scale = static_cast<long double>(given.scale);
        for (std::size_t i = 0; i < given.vocab; ++i) {
            const bool is_target = static_cast<std::int32_t>(i) == given.targets[t];
            const long double want = scale * (exact.softmax[i] - (is_target ? 1 : 0));
            const long double off = std::fabs(static_cast<long double>(got.row(t)[i]) - want);
            outside += off <= std::fabs(scale) * bounds.of_gradient(i, is_target) ? 0u : 1u;
        }
    }
    // Nothing between the rows.
    for (std::size_t t = 0; t < got.rows; ++t)
        for (std::size_t i = got.vocab; i < got.stride; ++i)
            outside += got.logits[t * got.stride + i] == batch<Backend>::between ? 0u : 1u;
    CHECK(outside == 0);
}

// The sizes at which registers and sums in double begin and end.
template <class Backend>
std::vector<std::size_t> vocabularies() {
    constexpr std::size_t w = machine<Backend>::width;
    std::vector<std::size_t> all{1, 2, 3, 2 * w + 1, 31, 32 * w - 1, 32 * w, 32 * w + 1, 1000};
    if (w > 1) all.insert(all.end(), {w - 1, w, w + 1});
    return all;
}

}  // namespace

TEST_CASE_TEMPLATE("cross entropy: value and gradient are the formula's", Backend, reference<>, simd<>) {
    std::uint32_t seed = 0;
    for (const std::size_t vocab : vocabularies<Backend>())
        for (const float size : {1.0f, 20.0f, 1e4f})
            for (const std::size_t gap : {0u, 3u}) {
                CAPTURE(vocab);
                CAPTURE(size);
                CAPTURE(gap);
                batch<Backend> given(19, vocab, gap);  // one task of 16 rows, one of 3
                given.fill(++seed, size);
                given.targets[3] = given.targets[18] = no_target;
                given.targets[0] = 0;
                given.targets[1] = static_cast<std::int32_t>(vocab - 1);
                given.scale = static_cast<training_number<Backend>>(seed % 3 == 0 ? 1.0 : 1.0 / 19);
                batch<Backend> got = given;
                REQUIRE(got.run().ok());
                check_rows(given, got);
            }
}

// Central differences over 2 h and h, extrapolated, are off by f^(5) h^4 / 480, which is below 1e-14 for h = 2^-10: the
// fifth cumulant of a distribution on {0, 1} is below 1. A difference of two losses with an error E each is off by 2 E:
// (4 narrow - wide) / 3, narrow over h and wide over 2 h, by 3 E / h.
TEST_CASE_TEMPLATE("cross entropy: the gradient is the slope of the value in double", Backend, reference<>,
                   simd<>) {
    for (const std::size_t vocab : {1u, 2u, 7u, 33u}) {
        CAPTURE(vocab);
        batch<Backend> given(3, vocab);
        given.fill(static_cast<std::uint32_t>(vocab), 3.0f);
        given.targets[2] = no_target;
        given.scale = 0.25;
        batch<Backend> got = given;
        REQUIRE(got.run().ok());
        batch<reference<>> in_double(3, vocab);
        std::copy(given.logits.begin(), given.logits.end(), in_double.logits.begin());
        in_double.targets = given.targets;
        const auto loss = [&](std::size_t at, double moved) {
            batch<reference<>> copy = in_double;
            copy.logits[at] += moved;
            REQUIRE(copy.run().ok());
            return 0.25 * (copy.losses[0] + copy.losses[1] + copy.losses[2]);
        };
        constexpr double h = 0x1p-10;
        for (std::size_t at = 0; at < 3 * vocab; ++at) {
            const double wide = (loss(at, h) - loss(at, -h)) / (2 * h);
            const double narrow = (loss(at, h / 2) - loss(at, -h / 2)) / h;
            const std::size_t t = at / vocab, i = at % vocab;
            long double bound = 0;
            if (given.targets[t] != no_target) {
                const exact_row exact(given.row(t), given.targets[t]);
                const bool is_target = static_cast<std::int32_t>(i) == given.targets[t];
                // E: of the row that moves; the others are the same numbers, of two additions.
                const long double e = row_bounds<reference<>>(exact).of_loss() + 0x1p-47L;
                bound = e * 3 / h + row_bounds<Backend>(exact).of_gradient(i, is_target) + 1e-14L;
            }
            CHECK(std::fabs(static_cast<double>(got.logits[at]) - (4 * narrow - wide) / 3) <= bound);
        }
    }
}

// In f32 alone a lane would add 3125 numbers, with errors that add up to some hundred units.
TEST_CASE_TEMPLATE("cross entropy: a large vocabulary is summed in double", Backend, reference<>, simd<>) {
    batch<Backend> given(1, 50000);
    std::fill(given.logits.begin(), given.logits.end(), static_cast<training_number<Backend>>(-0.1));
    given.logits[49999] = 0;
    given.targets[0] = 7;
    batch<Backend> got = given;
    REQUIRE(got.run().ok());
    check_rows(given, got);
}

TEST_CASE_TEMPLATE("cross entropy: logits far from 0, and far apart", Backend, reference<>, simd<>) {
    using number = training_number<Backend>;
    constexpr std::size_t w = machine<Backend>::width;
    for (const std::size_t vocab : {std::size_t{1}, std::size_t{2}, w, w + 1, 3 * w + 5}) {
        CAPTURE(vocab);
        const auto last = static_cast<std::int32_t>(vocab - 1);
        const auto v = static_cast<double>(vocab);
        for (const double level : {0.0, 1e4, -1e4, 3e38, -3e38, 1e-40, -1e-40}) {
            CAPTURE(level);
            batch<Backend> all(std::vector<double>(vocab, level), last);
            REQUIRE(all.run().ok());
            CHECK(std::fabs(all.losses[0] - std::log(v)) <= 0x1p-52 * std::log(v));
            for (std::size_t i = 0; i + 1 < vocab; ++i) CHECK(all.logits[i] == static_cast<number>(1 / v));
            CHECK(all.logits[vocab - 1] == static_cast<number>(1 / v) - 1);
        }
        if (vocab < 2) continue;
        // One apart from all others, at either end of the row: exp(-2e4) is 0 in every format.
        for (const std::size_t apart : {std::size_t{0}, vocab - 1}) {
            CAPTURE(apart);
            std::vector<double> row(vocab, -1e4);
            row[apart] = 1e4;
            const auto target = static_cast<std::int32_t>(apart), other = target == 0 ? last : 0;
            batch<Backend> sure(row, target), wrong(row, other);
            REQUIRE(sure.run().ok());
            CHECK(sure.losses[0] == 0);
            for (const number g : sure.logits) CHECK(g == 0);
            REQUIRE(wrong.run().ok());
            CHECK(wrong.losses[0] == 2e4);
            wrong.logits[apart] -= 1;
            wrong.logits[static_cast<std::size_t>(other)] += 1;
            for (const number g : wrong.logits) CHECK(g == 0);
            // Further apart than f32 can tell.
            row.assign(vocab, -3e38);
            row[apart] = 3e38;
            batch<Backend> furthest(row, other);
            REQUIRE(furthest.run().ok());
            CHECK(furthest.losses[0] == doctest::Approx(6e38).epsilon(1e-6));
            for (const number g : furthest.logits) CHECK(std::isfinite(g));
        }
    }
}

TEST_CASE_TEMPLATE("cross entropy: -infinity is a token that cannot come", Backend, reference<>, simd<>) {
    using number = training_number<Backend>;
    constexpr std::size_t w = machine<Backend>::width;
    for (const std::size_t vocab : {std::size_t{2}, w + 1, 2 * w, 2 * w + 3})
        for (const std::size_t at : {std::size_t{0}, vocab / 2, vocab - 1}) {
            CAPTURE(vocab);
            CAPTURE(at);
            std::vector<double> row(vocab);
            for (std::size_t i = 0; i < vocab; ++i) row[i] = 0.125 * static_cast<double>(i % 7) - 5;
            row[at] = -infinity;
            const batch<Backend> given(row, at == 0 ? 1 : 0);
            batch<Backend> got = given;
            REQUIRE(got.run().ok());
            check_rows(given, got);
            CHECK(got.logits[at] == 0);
            batch<Backend> wanted(row, static_cast<std::int32_t>(at));
            REQUIRE(wanted.run().ok());
            CHECK(wanted.losses[0] == infinity);
            CHECK(wanted.logits[at] == -1);
            for (const number g : wanted.logits) CHECK(std::isfinite(g));
        }
}

TEST_CASE_TEMPLATE("cross entropy: NaN and infinity are told, wherever they are", Backend, reference<>,
                   simd<>) {
    using number = training_number<Backend>;
    constexpr std::size_t w = machine<Backend>::width;
    const auto check_nan = [](const std::vector<double>& row, std::int32_t target) {
        batch<Backend> got(row, target);
        REQUIRE(got.run().ok());
        CHECK(std::isnan(got.losses[0]));
        for (const number g : got.logits) CHECK(std::isnan(g));
    };
    for (const std::size_t vocab : {std::size_t{1}, w, 2 * w + 3})
        for (std::size_t at = 0; at < vocab; ++at)
            for (const double bad : {not_a_number, infinity}) {
                CAPTURE(vocab);
                CAPTURE(at);
                CAPTURE(bad);
                std::vector<double> row(vocab);
                for (std::size_t i = 0; i < vocab; ++i) row[i] = static_cast<double>(i % 5);
                row[at] = bad;
                check_nan(row, 0);
                check_nan(row, static_cast<std::int32_t>(at));
            }
    check_nan(std::vector<double>(w + 2, -infinity), 1);
    // The rows beside it do not notice, nor does one without a target.
    batch<Backend> given(3, w + 1);
    given.fill(5, 2.0f);
    batch<Backend> plain = given;
    given.logits[w + 1] = static_cast<number>(not_a_number);
    batch<Backend> other = given;
    REQUIRE(plain.run().ok());
    REQUIRE(given.run().ok());
    CHECK(std::isnan(given.losses[1]));
    for (const std::size_t t : {0u, 2u}) {
        CHECK(given.losses[t] == plain.losses[t]);
        CHECK(std::equal(given.row(t).begin(), given.row(t).end(), plain.row(t).begin()));
    }
    other.targets[1] = no_target;
    REQUIRE(other.run().ok());
    CHECK(other.losses[1] == 0);
    for (const number g : other.row(1)) CHECK(g == 0);
}

TEST_CASE_TEMPLATE("cross entropy: a scale of 0 gives the losses alone", Backend, reference<>, simd<>) {
    batch<Backend> given(5, 37);
    given.fill(3, 4.0f);
    batch<Backend> plain = given;
    given.scale = 0;
    REQUIRE(given.run().ok());
    REQUIRE(plain.run().ok());
    CHECK(given.losses == plain.losses);
    for (const auto g : given.logits) CHECK(g == 0);
}

TEST_CASE_TEMPLATE("cross entropy: the same to the bit for any number of threads", Backend, reference<>,
                   simd<>) {
    batch<Backend> given(83, 2 * machine<Backend>::width + 5, 1);
    given.fill(9, 6.0f);
    given.targets[40] = no_target;
    batch<Backend> alone = given;
    REQUIRE(alone.run().ok());
    const auto check_same = [&](executor_ref execute) {
        batch<Backend> got = given;
        REQUIRE(got.run(execute).ok());
        CHECK(got.losses == alone.losses);
        CHECK(got.logits == alone.logits);
    };
    for (const std::size_t threads : {1u, 2u, 5u}) {
        thread_team team(threads);
        check_same(team);
    }
    check_same(tiffin_test::thread_per_task{});
    check_same(tiffin_test::reversed{});
    check_same(tiffin_test::shuffled{});
    // And for any rows beside them.
    for (std::size_t t = 0; t < given.rows; ++t) {
        batch<Backend> one(1, given.vocab);
        std::copy_n(given.row(t).begin(), given.vocab, one.logits.begin());
        one.targets[0] = given.targets[t];
        REQUIRE(one.run().ok());
        CHECK(one.losses[0] == alone.losses[t]);
        CHECK(std::equal(one.logits.begin(), one.logits.end(), alone.row(t).begin()));
    }
}

TEST_CASE_TEMPLATE("cross entropy: what is wrong is found before anything is written", Backend, reference<>,
                   simd<>) {
    batch<Backend> given(20, 9);
    given.fill(1, 1.0f);
    batch<Backend> bad = given;
    const auto refused = [&](const status& s, errc code, std::string_view where, std::string_view what) {
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == code);
        CHECK(s.failure().where == where);
        CHECK(s.failure().what == what);
        CHECK(bad.logits == given.logits);
        CHECK(bad.losses == std::vector<double>(20, 55.0));
    };
    const matrix_view<training_number<Backend>> logits(bad.logits.data(), 20, 9);
    const std::span<const std::int32_t> targets = bad.targets;
    const std::span<double> losses = bad.losses;
    refused(softmax_cross_entropy(Backend{}, logits, targets.first(19), 1, losses), errc::size, "targets",
            "has 19 elements for 20 rows of logits");
    refused(softmax_cross_entropy(Backend{}, logits, targets, 1, losses.first(19)), errc::size, "losses",
            "has 19 elements for 20 rows of logits");
    refused(softmax_cross_entropy(Backend{}, {bad.logits.data(), 20, 9, 8}, targets, 1, losses), errc::size,
            "logits", "has a row stride of 8, less than its width 9");
    constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min();
    constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
    for (const std::int32_t outside : {std::int32_t{9}, std::int32_t{-2}, least, most}) {
        bad.targets[19] = outside;
        refused(bad.run(), errc::token_id, "targets",
                "token 19 is " + std::to_string(outside) + "; the vocabulary has 9");
    }
    // No rows; rows without a number, of which none can have a target.
    CHECK(softmax_cross_entropy(Backend{}, {nullptr, 0, 9}, {}, 1, {}).ok());
    batch<Backend> none(2, 0);
    none.targets = {no_target, no_target};
    CHECK(none.run().ok());
    CHECK(none.losses == std::vector<double>(2, 0.0));
    none.targets[1] = 0;
    CHECK_FALSE(none.run().ok());
}

}  // namespace learn_cross_entropy_test
