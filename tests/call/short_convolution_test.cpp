// The convolution over a sequence: against sums over whole sequences, in any pieces, many sequences at once, undone.
#include <tiffin/call/short_convolution.hpp>

#include <tiffin/call/row_history.hpp>

#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace call_short_convolution_test {
using namespace tiffin;

namespace {

constexpr std::size_t width = 301, taps = 4, dilation = 3;  // more features than are summed together

struct three_threads : tiffin_test::thread_per_task {
    [[nodiscard]] static std::size_t concurrency() noexcept { return 3; }
};

struct convolved {
    std::vector<float> conv, norm;
    short_convolution convolution;

    static std::vector<float> random(std::size_t n, unsigned seed) {
        std::vector<float> all(n);
        tiffin_test::random_numbers(seed).fill(all, 1.0f);
        return all;
    }
    convolved()
        : conv(random(width * taps, 3)),
          norm(random(width, 4)),
          convolution(short_convolution::prepare(given(), dilation).or_throw()) {}
    [[nodiscard]] weights given() const {
        weights all;
        all.add("conv.weight", conv.data(), {width, 1, taps}).add("conv_norm.weight", norm.data(), {width});
        return all;
    }
    [[nodiscard]] std::vector<float> run(const std::vector<float>& v,
                                         const std::vector<std::uint32_t>& sequences,
                                         std::vector<row_history>& past,
                                         executor_ref execute = serially) const {
        std::vector<float> y(v.size());
        const std::size_t n = sequences.size();
        convolution({v.data(), n, width}, sequences, past, {y.data(), n, width}, execute).or_throw();
        return y;
    }
    // In double, of one sequence from its beginning; and what f32 may be off by.
    void by_definition(const std::vector<float>& v, std::vector<double>& y,
                       std::vector<double>& bound) const {
        const std::size_t n = v.size() / width;
        std::vector<double> u(v.size());
        for (std::size_t t = 0; t < n; ++t) {
            double squares = 0;
            for (std::size_t j = 0; j < width; ++j)
                squares += std::pow(static_cast<double>(v[t * width + j]), 2);
            const double scale = 1 / std::sqrt(squares / width + 1e-5);
            for (std::size_t j = 0; j < width; ++j)
                u[t * width + j] =
                    static_cast<double>(v[t * width + j]) * scale * static_cast<double>(norm[j]);
        }
        y.assign(v.size(), 0);
        bound.assign(v.size(), 0);
        for (std::size_t t = 0; t < n; ++t)
            for (std::size_t j = 0; j < width; ++j) {
                double sum = 0, size = 0;
                for (std::size_t k = 0; k < taps; ++k) {
                    const std::size_t back = (taps - 1 - k) * dilation;
                    if (back > t) continue;
                    const double term = static_cast<double>(conv[j * taps + k]) * u[(t - back) * width + j];
                    sum += term;
                    size += std::fabs(term);
                }
                const double value = static_cast<double>(v[t * width + j]);
                y[t * width + j] = value + sum / (1 + std::exp(-sum));
                // u has four roundings (eps is a float too), the sum one per product and term, silu's slope is below
                // 1.1 and its exp 4 units off, the last sum one more.
                bound[t * width + j] = 0x1p-24 * (1.1 * (4 + taps + 1) * size + 10 * std::fabs(sum) +
                                                  2 * std::fabs(y[t * width + j])) +
                                       1e-30;
            }
    }
};

}  // namespace

TEST_CASE("short_convolution: as it is written, from the beginning of a sequence") {
    const convolved c;
    const std::vector<float> v = convolved::random(25 * width, 7);
    std::vector<row_history> past(1, c.convolution.make_history());
    const std::vector<float> y = c.run(v, std::vector<std::uint32_t>(25, 0), past);
    std::vector<double> wanted, bound;
    c.by_definition(v, wanted, bound);
    std::size_t off = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
        off += std::fabs(static_cast<double>(y[i]) - wanted[i]) <= bound[i] ? 0u : 1u;
    CHECK(off == 0);
    CHECK(past[0].length() == 25);
}

TEST_CASE("short_convolution: many sequences in calls of any size, the same to the bit") {
    const convolved c;
    constexpr std::size_t sequences = 3, each = 21;
    const std::vector<float> v = convolved::random(sequences * each * width, 9);  // sequence by sequence
    std::vector<float> wanted;
    for (std::uint32_t s = 0; s < sequences; ++s) {
        std::vector<row_history> alone(1, c.convolution.make_history());
        const std::vector<float> part(v.begin() + static_cast<std::ptrdiff_t>(s * each * width),
                                      v.begin() + static_cast<std::ptrdiff_t>((s + 1) * each * width));
        const std::vector<float> y = c.run(part, std::vector<std::uint32_t>(each, 0), alone);
        wanted.insert(wanted.end(), y.begin(), y.end());
    }
    tiffin_test::random_numbers random(5);
    for (int round = 0; round < 4; ++round) {
        std::vector<row_history> past(sequences, c.convolution.make_history());
        std::vector<std::size_t> next(sequences, 0);
        std::size_t different = 0;
        for (std::size_t left = sequences * each; left > 0;) {
            const std::size_t n = std::min<std::size_t>(1 + random.below(11), left);
            std::vector<std::uint32_t> of;
            std::vector<std::size_t> rows;
            std::vector<float> in;
            while (of.size() < n) {
                const std::size_t s = random.below(sequences);
                if (next[s] == each) continue;
                of.push_back(static_cast<std::uint32_t>(s));
                rows.push_back(s * each + next[s]++);
                const auto begin = v.begin() + static_cast<std::ptrdiff_t>(rows.back() * width);
                in.insert(in.end(), begin, begin + width);
            }
            const std::vector<float> y =
                round % 2 == 0 ? c.run(in, of, past) : c.run(in, of, past, three_threads{});
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t j = 0; j < width; ++j)
                    different += y[i * width + j] == wanted[rows[i] * width + j] ? 0u : 1u;
            left -= n;
        }
        CHECK(different == 0);
    }
}

TEST_CASE("short_convolution: tokens taken back leave no trace; a reset begins anew; onto its input") {
    const convolved c;
    constexpr std::size_t before = 17, rejected = 5, after = 8;
    const std::vector<float> v = convolved::random((before + after) * width, 11),
                             wrong = convolved::random(rejected * width, 12);
    std::vector<row_history> straight(1, c.convolution.make_history()),
        past(1, c.convolution.make_history(rejected));
    const std::vector<float> wanted = c.run(v, std::vector<std::uint32_t>(before + after, 0), straight);
    const auto part = [&](std::size_t first, std::size_t n) {
        return std::vector<float>(v.begin() + static_cast<std::ptrdiff_t>(first * width),
                                  v.begin() + static_cast<std::ptrdiff_t>((first + n) * width));
    };
    for (int again = 0; again < 2; ++again) {
        static_cast<void>(c.run(part(0, before), std::vector<std::uint32_t>(before, 0), past));
        static_cast<void>(c.run(wrong, std::vector<std::uint32_t>(rejected, 0), past));
        past[0].undo(rejected).or_throw();
        CHECK(past[0].length() == before);
        std::vector<float> y = part(before, after);
        c.convolution({y.data(), after, width}, std::vector<std::uint32_t>(after, 0), past,
                      {y.data(), after, width})
            .or_throw();
        CHECK(std::equal(y.begin(), y.end(), wanted.begin() + static_cast<std::ptrdiff_t>(before * width)));
        past[0].reset();
    }
    // At the beginning all can be taken back, later as many as were asked for and one.
    row_history own(2, 1, 3);
    for (int i = 0; i < 4; ++i) *own.add() = static_cast<float>(i);
    CHECK(own.before(4) != nullptr);
    CHECK(*own.before(1) == 3);
    CHECK(own.before(5) == nullptr);
    CHECK(own.undo(4).ok());
    for (int i = 0; i < 40; ++i) *own.add() = static_cast<float>(i);
    const status s = own.undo(5);
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().code == errc::size);
    CHECK(s.failure().what == "are 5 to be taken back; the history can undo 4 of its 40");
    CHECK(own.undo(4).ok());
    CHECK(*own.before(2) == 34);
}

TEST_CASE("short_convolution: what is wrong is told, with its numbers, and nothing has changed") {
    const convolved c;
    const auto says = [](const auto& outcome, errc code, const std::string& where, const std::string& words) {
        REQUIRE_FALSE(outcome.ok());
        CHECK(outcome.failure().code == code);
        CHECK(outcome.failure().where == where);
        CHECK_MESSAGE(outcome.failure().what.find(words) != std::string::npos, outcome.failure().what);
    };
    weights none, narrow, square;
    none.add("conv_norm.weight", c.norm.data(), {width});
    narrow.add("conv.weight", c.conv.data(), {width, taps})
        .add("conv_norm.weight", c.norm.data(), {width - 1});
    square.add("conv.weight", c.conv.data(), {width / 2, 2, taps})
        .add("conv_norm.weight", c.norm.data(), {width});
    says(short_convolution::prepare(none, 1), errc::missing_tensor, "conv.weight", "(width, taps)");
    says(short_convolution::prepare(narrow, 1), errc::shape, "conv_norm.weight", "(300); it must be (301)");
    says(short_convolution::prepare(square, 1), errc::shape, "conv.weight", "(150, 2, 4)");
    says(short_convolution::prepare(c.given(), 0), errc::option, "dilation", "is 0");
    says(short_convolution::prepare(c.given(), ~std::size_t{0} / 2), errc::option, "dilation",
         "overflow 64 bits");

    std::vector<row_history> past(2, c.convolution.make_history());
    std::vector<row_history> shorter(2, row_history(8, width)), thinner(2, row_history(9, width - 1));
    const std::vector<float> v = convolved::random(2 * width, 7);
    std::vector<float> y(2 * width, 5.0f);
    const auto call = [&](std::size_t rows, std::size_t cols, std::vector<std::uint32_t> of,
                          std::vector<row_history>& histories) {
        return c.convolution({v.data(), rows, cols}, of, histories, {y.data(), 2, width});
    };
    says(call(2, width - 1, {0, 1}, past), errc::size, "v", "(2, 300); it must be (2, 301)");
    says(call(1, width, {0}, past), errc::size, "y", "(2, 301); it must be (1, 301)");
    says(call(2, width, {0}, past), errc::size, "sequence_of", "are 1 for 2 rows");
    says(call(2, width, {0, 2}, past), errc::size, "sequence_of[1]", "is 2; there are 2");
    says(call(2, width, {0, 1}, shorter), errc::size, "histories[0]", "keeps 8 rows of 301");
    says(call(2, width, {0, 1}, thinner), errc::size, "histories[0]", "keeps 9 rows of 300");
    CHECK(std::all_of(y.begin(), y.end(), [](float one) { return one == 5.0f; }));
    CHECK(past[0].length() == 0);
}

}  // namespace call_short_convolution_test
