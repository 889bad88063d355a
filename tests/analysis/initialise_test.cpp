// The initialisers: bits that are the same everywhere, and the distribution they claim.
#include <tiffin/analysis/initialise.hpp>

#include "support/doctest.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace analysis_initialise_test {
using namespace tiffin;

namespace {

constexpr std::size_t count = 1u << 19;

std::vector<double> normal_numbers(std::uint64_t seed, std::size_t n, std::uint64_t first = 0) {
    std::vector<double> y(n);
    for (std::size_t i = 0; i < n; ++i)
        y[i] = detail::standard_normal(detail::counter_random(seed, first + i));
    return y;
}

// sum of f(y) / n less `mean`, in units of its standard deviation, sqrt(variance / n). By the central
// limit theorem beyond 6 of those once in 5e8 seeds.
template <class F>
double deviation(const std::vector<double>& y, double mean, double variance, const F& f) {
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += f(i) - mean;
    return sum / std::sqrt(variance * static_cast<double>(y.size()));
}

// The mean square in units of its expectation, 6 standard deviations sqrt(2 / n) wide.
void check_sigma(const std::vector<float>& values, double sigma) {
    const auto n = static_cast<double>(values.size());
    double squares = 0, sum = 0;
    for (const float v : values) {
        squares += static_cast<double>(v) * static_cast<double>(v);
        sum += static_cast<double>(v);
    }
    CHECK(std::fabs(squares / n / (sigma * sigma) - 1) <= 6 * std::sqrt(2 / n));
    CHECK(std::fabs(sum / n / sigma) <= 6 / std::sqrt(n));
}

}  // namespace

// The generator written again, held to the published first outputs from the state 1234567, then beside
// the library's streams, whose first states are mixed from seed and index.
TEST_CASE("initialise: the generator is splitmix64") {
    const auto mixed = [](std::uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    };
    constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
    CHECK(mixed(1234567 + golden) == 6457827717110365317u);
    CHECK(mixed(1234567 + 2 * golden) == 3203168211198807973u);
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{5}, ~std::uint64_t{0}})
        for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
            detail::counter_random random(seed, index);
            const std::uint64_t state = mixed(mixed(seed) + golden * index);
            for (std::uint64_t i = 1; i <= 5; ++i) CHECK(random.bits() == mixed(state + golden * i));
        }
}

// Each count is binomial; 6 standard deviations.
TEST_CASE("initialise: below(n) is even") {
    for (const std::uint64_t n : {1u, 2u, 3u, 7u, 10u, 100u}) {
        CAPTURE(n);
        detail::counter_random random(n);
        std::vector<double> counts(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < 100000; ++i) {
            const auto drawn = static_cast<std::size_t>(random.below(n));
            REQUIRE(drawn < counts.size());
            ++counts[drawn];
        }
        const double p = 1 / static_cast<double>(n);
        for (const double c : counts) CHECK(std::fabs(c - 1e5 * p) <= 6 * std::sqrt(1e5 * p * (1 - p)));
    }
    // n = 3/4 of 2^64: a plain modulo would put half of the numbers into the lowest third.
    detail::counter_random random(1);
    double low = 0;
    for (std::size_t i = 0; i < 10000; ++i)
        low += random.below(std::uint64_t{3} << 62) < std::uint64_t{1} << 62 ? 1 : 0;
    CHECK(std::fabs(low - 1e4 / 3) <= 6 * std::sqrt(1e4 * 2 / 9));
}

// From a second implementation, in Python with exact fractions.
TEST_CASE("initialise: the same numbers everywhere") {
    struct known {
        std::uint64_t seed, first;
        std::array<double, 8> y;
    };
    constexpr std::uint64_t last = ~std::uint64_t{0};
    for (const known& k :
         {known{1,
                0,
                {-0x1.0440b122814p+1, 0x1.5b6db250dap-2, -0x1.22d3fa29678p+0, -0x1.df38141c798p+0,
                 -0x1.f751dfbc48p-4, 0x1.aa022bdcbfp-1, 0x1.88b941319bp-1, -0x1.76c6a9b43c8p+0}},
          known{2026,
                0,
                {0x1.427d402fd2p-2, 0x1.70929f64e2p-2, -0x1.dfdc9368c6p-2, -0x1.67ae1ff5398p+0,
                 -0x1.6cd1877bb9p-1, -0x1.0e81009cbc4p+1, -0x1.5bba2f6624p-3, 0x1.8622d56f6ap-2}},
          known{2026,
                1000000000000u,
                {0x1.be4c856fb68p+0, -0x1.d3d44889eap-2, -0x1.224614e1a28p+0, -0x1.4550b82f26p-2,
                 0x1.6697f65512p-2, -0x1.412eef1bcap-2, -0x1.781a1fd4a3p-1, 0x1.10279417f4p-3}},
          known{last,
                last - 3,
                {0x1.5127ae1b19p-1, 0x1.161dbb794c8p+0, -0x1.174fcc504dp-1, 0x1.7f4efcb6ba8p+0,
                 -0x1.30f7d1d144p-3, 0x1.4cf59099a4p-3, 0x1.a34049e58a8p+0, -0x1.3fe57cc00bp-1}}}) {
        const std::vector<double> y = normal_numbers(k.seed, k.y.size(), k.first);
        for (std::size_t i = 0; i < k.y.size(); ++i) CHECK(y[i] == k.y[i]);
    }
    std::vector<float> w(4);
    REQUIRE(small_init(w, 2048, 7).ok());
    CHECK(w == std::vector<float>{-0x1.4cec46p-6f, 0x1.75ded6p-7f, -0x1.72af58p-8f, -0x1.f64d7p-7f});
    REQUIRE(deep_norm_init(w, 24, 2048, 7).ok());
    CHECK(w == std::vector<float>{-0x1.5eee7cp-9f, 0x1.8a1816p-10f, -0x1.86bc7ap-11f, -0x1.08bc96p-9f});
}

TEST_CASE("initialise: a number depends on its seed and index alone") {
    std::vector<float> whole(1001), part(1001), other(1001);
    fill_normal(whole, 0.5, 11);
    for (std::size_t from = 0, n = 1; from < part.size(); from += n, n = 3 * n + 1)
        fill_normal(std::span(part).subspan(from, std::min(n, part.size() - from)), 0.5, 11, from);
    CHECK(whole == part);
    fill_normal(other, 0.5, 12);
    std::size_t equal = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) equal += whole[i] == other[i] ? 1u : 0u;
    CHECK(equal <= 1);  // 1e6 pairs of f32 numbers with 2^20 values or more in reach: none, or one
    fill_normal(other, 0.25, 11);
    for (std::size_t i = 0; i < whole.size(); ++i) CHECK(other[i] == whole[i] / 2);
    fill_normal({}, 1, 1);
}

TEST_CASE("initialise: the moments of N(0, 1)") {
    for (const std::uint64_t seed : {0u, 1u, 77u}) {
        CAPTURE(seed);
        const std::vector<double> y = normal_numbers(seed, count);
        // E y^n is 0, 1, 0, 3; the variances of y, y^2, y^3, y^4 are 1, 2, 15, 105 - 9.
        CHECK(std::fabs(deviation(y, 0, 1, [&](std::size_t i) { return y[i]; })) <= 6);
        CHECK(std::fabs(deviation(y, 1, 2, [&](std::size_t i) { return y[i] * y[i]; })) <= 6);
        CHECK(std::fabs(deviation(y, 0, 15, [&](std::size_t i) { return y[i] * y[i] * y[i]; })) <= 6);
        CHECK(std::fabs(deviation(y, 3, 96, [&](std::size_t i) { return y[i] * y[i] * y[i] * y[i]; })) <= 6);
        // Neighbours, also of another seed, do not know of one another: products of independent numbers
        // have mean 0 and variance 1, and so have those of y^2 - 1 variance 4.
        const std::vector<double> z = normal_numbers(seed + 1, count);
        for (const std::size_t step : {1u, 2u, 64u, 2048u}) {
            const auto next = [&](std::size_t i) { return y[(i + step) % count]; };
            CHECK(std::fabs(deviation(y, 0, 1, [&](std::size_t i) { return y[i] * next(i); })) <= 6);
            CHECK(std::fabs(deviation(y, 0, 4, [&](std::size_t i) {
                      return (y[i] * y[i] - 1) * (next(i) * next(i) - 1);
                  })) <= 6);
        }
        CHECK(std::fabs(deviation(y, 0, 1, [&](std::size_t i) { return y[i] * z[i]; })) <= 6);
    }
}

// Dvoretzky, Kiefer, Wolfowitz, Massart: the distance of n numbers' distribution from the true one is
// above c / sqrt(n) with a probability of at most 2 exp(-2 c^2); 2e-9, as 6 sigma, for c = 3.22.
TEST_CASE("initialise: the distribution function of N(0, 1)") {
    std::vector<double> y = normal_numbers(3, count);
    std::sort(y.begin(), y.end());
    double distance = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const double below = std::erfc(-y[i] / std::sqrt(2.0)) / 2;
        distance = std::max({distance, std::fabs(below - static_cast<double>(i) / count),
                             std::fabs(below - static_cast<double>(i + 1) / count)});
    }
    CHECK(distance <= 3.22 / std::sqrt(static_cast<double>(count)));
    // The tails: the numbers beyond 3, a binomial count.
    const double p = std::erfc(3 / std::sqrt(2.0));
    const auto beyond =
        static_cast<double>(std::count_if(y.begin(), y.end(), [](double v) { return std::fabs(v) > 3; }));
    CHECK(std::fabs(beyond - p * count) <= 6 * std::sqrt(p * (1 - p) * count));
}

TEST_CASE("initialise: SmallInit and DeepNorm have their sigma") {
    std::vector<float> w(count);
    for (const std::size_t d : {1u, 5u, 16u, 768u, 2048u}) {  // 16: the rank of a bank, the inputs of its B
        CAPTURE(d);
        REQUIRE(small_init(w, d, 5).ok());
        check_sigma(w, std::sqrt(2.0 / (5.0 * static_cast<double>(d))));
        for (const std::size_t layers : {1u, 28u}) {
            REQUIRE(deep_norm_init(w, layers, d, 6).ok());
            check_sigma(w, 2.0 / static_cast<double>(layers) / std::sqrt(static_cast<double>(d)));
        }
    }
}

TEST_CASE("initialise: what is refused, and that nothing is written then") {
    std::vector<float> w(3, 4.0f);
    const auto refused = [&](const status& s, const char* message) {
        REQUIRE(!s.ok());
        CHECK(s.failure().code == errc::option);
        CHECK(s.failure().message() == message);
        CHECK(w == std::vector<float>(3, 4.0f));
    };
    refused(small_init(w, 0, 1), "inputs: is 0; sigma is sqrt(2 / (5 inputs))");
    refused(deep_norm_init(w, 0, 8, 1), "layers: is 0; sigma is 2 / (layers sqrt(d_model))");
    refused(deep_norm_init(w, 8, 0, 1), "d_model: is 0; sigma is 2 / (layers sqrt(d_model))");
}

}  // namespace analysis_initialise_test
