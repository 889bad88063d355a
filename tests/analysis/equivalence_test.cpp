// Dense sizes equal to those of StructMoE and MoRT, and their published figures.
#include <tiffin/analysis/equivalence.hpp>

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

// W_1, W_2, A and B of every expert, the router. Whole numbers below 2^53, so everything is exact.
double structmoe_parameters(std::size_t d, std::size_t f, std::size_t L, std::size_t r) {
    return static_cast<double>(2 * f * d + L * (r * d + f * r) + L * d);
}

}  // namespace

// The widest block that has no more parameters than the dense one.
TEST_CASE("equivalence: structmoe's width is the widest with no more parameters") {
    static_assert(structmoe_width_at_equal_parameters(2048, 7168, 16, 16) == 6618);  // as published
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
                    if (width > 0) CHECK(structmoe_parameters(d, width, L, r) <= dense);
                    CHECK(structmoe_parameters(d, width + 1, L, r) > dense);
                    if (L == 0) CHECK(width == f);
                }
    CHECK(structmoe_width_at_equal_parameters(2048, 100, 16, 400) == 0);  // the experts are more already
    CHECK(structmoe_width_at_equal_parameters(2048, 136, 16, 16) == 0);   // d L (r + 1) = 2 d f
    CHECK(structmoe_width_at_equal_parameters(0, 100, 0, 16) == 0);
    CHECK(structmoe_width_at_equal_parameters(0, 100, 16, 16) == 0);
}

namespace {

struct published {
    double eta, ratio;
};
constexpr published mort_figures[] = {{30, 1.20}, {50, 1.25}, {80, 1.29}};

}  // namespace

TEST_CASE("equivalence: MoRT's effective size") {
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
TEST_CASE("equivalence: no single gamma gives the three figures, a logarithm does") {
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
