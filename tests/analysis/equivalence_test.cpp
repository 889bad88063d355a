// The published figures of StructMoE, MeKi and MoRT.
#include <tiffin/analysis/structmoe.hpp>

#include "support/doctest.hpp"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>

using namespace tiffin;

namespace {

std::string written(const char* format, double v) {
    char text[32];
    std::snprintf(text, sizeof text, format, v);
    return text;
}

}  // namespace

// Specification, section 4.
TEST_CASE("structmoe: the published figures") {
    static_assert(structmoe_width_at_equal_parameters(2048, 7168, 16, 16) == 6618);
    constexpr structmoe_shape shape{.d_model = 2048, .d_ff = 6618, .experts = 16, .rank = 16};
    CHECK(written("%.3f", structmoe_flops_per_token(shape) / (4.0 * 2048 * 7168)) == "0.929");
    CHECK(structmoe_flops_per_token(shape) == 54214656 + 65536 + 277312);  // base, router, one expert
    CHECK(structmoe_parameters(shape) == 27107328 + 2218496 + 32768);      // base, experts, router
    CHECK(structmoe_parameters(shape) <= 2.0 * 2048 * 7168);
}

// Each tensor by itself. Whole numbers below 2^53, so everything is exact.
TEST_CASE("structmoe: parameters and FLOPs are those of the tensors") {
    for (const std::size_t d : {1u, 3u, 64u, 2048u})
        for (const std::size_t f : {1u, 7u, 250u, 6618u})
            for (const std::size_t L : {1u, 5u, 16u})
                for (const std::size_t r : {1u, 2u, 17u})
                    for (std::size_t k = 1; k <= L; k += 2) {
                        const structmoe_shape shape{d, f, L, r, k};
                        const std::size_t w1 = f * d, w2 = d * f, a = r * d, b = f * r, router = L * d;
                        CHECK(structmoe_parameters(shape) ==
                              static_cast<double>(w1 + w2 + router + L * a + L * b));
                        CHECK(structmoe_flops_per_token(shape) ==
                              static_cast<double>(2 * (w1 + w2 + router + k * a + k * b)));
                    }
}

// The widest block that has no more parameters than the dense one.
TEST_CASE("structmoe: the width at equal parameters is the widest") {
    for (const std::size_t d : {1u, 3u, 64u, 511u, 2048u})
        for (const std::size_t f : {1u, 7u, 250u, 7168u, 7169u})
            for (const std::size_t L : {0u, 1u, 5u, 16u})
                for (const std::size_t r : {0u, 1u, 2u, 17u}) {
                    CAPTURE(d);
                    CAPTURE(f);
                    CAPTURE(L);
                    CAPTURE(r);
                    const std::size_t width = structmoe_width_at_equal_parameters(d, f, L, r);
                    const auto dense = static_cast<double>(2 * d * f);
                    if (width > 0) CHECK(structmoe_parameters({d, width, L, r}) <= dense);
                    CHECK(structmoe_parameters({d, width + 1, L, r}) > dense);
                    if (L == 0) CHECK(width == f);
                }
    CHECK(structmoe_width_at_equal_parameters(2048, 100, 16, 400) == 0);  // the experts are more already
    CHECK(structmoe_width_at_equal_parameters(2048, 136, 16, 16) == 0);   // d L (r + 1) = 2 d f
    CHECK(structmoe_width_at_equal_parameters(0, 100, 0, 16) == 0);
    CHECK(structmoe_width_at_equal_parameters(0, 100, 16, 16) == 0);
}

TEST_CASE("structmoe: MeKi's memories") {
    CHECK(meki_memory_weights(28, 151680, 128) == 543621120);
    CHECK(written("%.2e", meki_memory_weights(28, 151680, 128)) == "5.44e+08");
    CHECK(written("%.2e", meki_memory_weights(28, 151680, 192)) == "8.15e+08");
    CHECK(written("%.2e", meki_memory_weights(28, 151680, 256)) == "1.09e+09");
    static_assert(meki_bytes_per_token(28, 256) == 14 * 1024);
    static_assert(meki_bytes_per_token(28, 256, 32) == 28 * 1024);
    static_assert(meki_bytes_per_token(3, 32, 4.5) == 54);
}

namespace {

struct published {
    double eta, ratio;
};
constexpr published mort_figures[] = {{30, 1.20}, {50, 1.25}, {80, 1.29}};

}  // namespace

TEST_CASE("structmoe: MoRT's effective size") {
    static_assert(mort_compute_ratio(0, 30) == 1);
    static_assert(mort_compute_ratio(0.25, 8) == 3);
    static_assert(mort_effective_parameters(1000, 0.25, 8) == 3000);
    // Each figure with the gamma that it implies, written to five decimals.
    CHECK(written("%.2f", mort_compute_ratio(0.00667, 30)) == "1.20");
    CHECK(written("%.2f", mort_compute_ratio(0.00500, 50)) == "1.25");
    CHECK(written("%.2f", mort_compute_ratio(0.00363, 80)) == "1.29");
    CHECK(mort_effective_parameters(1e9, 0.005, 50) == doctest::Approx(1.25e9).epsilon(1e-15));
}

// Why gamma is an argument: the gammas that round to one figure do not round to another.
TEST_CASE("structmoe: no single gamma gives the three figures, a logarithm does") {
    for (const published& p : mort_figures)
        for (const published& q : mort_figures) {
            if (p.eta >= q.eta) continue;
            const double least_of_p = (p.ratio - 0.005 - 1) / p.eta,
                         most_of_q = (q.ratio + 0.005 - 1) / q.eta;
            CHECK(least_of_p > most_of_q);
        }
    for (const published& p : mort_figures)
        CHECK(written("%.2f", 1.20 + 0.092 * std::log(p.eta / 30)) == written("%.2f", p.ratio));
}
