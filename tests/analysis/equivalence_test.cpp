// Dense sizes equal to those of StructMoE and MoRT, and their published figures.
#include <tiffin/analysis/equivalence.hpp>

#include "support/doctest.hpp"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>

namespace analysis_equivalence_test {
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

// MoRT, Tables 6 and 7: with eta token-indexed parameters per parameter of the backbone, a share rho of whose
// experts is read, so many percent less loss, and the compute that a backbone without them needs for that.
struct published {
    const char* name;
    double eta, rho, loss_less, compute;
};
constexpr published mort_figures[] = {{"eta 30", 30, 1, 2.00, 1.20},
                                      {"eta 50", 50, 1, 2.42, 1.25},
                                      {"eta 80", 80, 1, 2.85, 1.29},
                                      {"rho 0.3", 80, 0.3, 2.70, 1.27},
                                      {"rho 0.6", 80, 0.6, 2.81, 1.28}};
struct interval {
    double least, most;
};
bool overlap(const interval& a, const interval& b) {
    return a.least <= b.most && b.least <= a.most;
}
// Of the frontier L* ~ C^-p: loss and compute of a row are both told, and 1 - loss = compute^-p.
interval exponent_of(const published& row) {
    const auto exponent = [](double loss_less, double compute) {
        return -std::log(1 - loss_less / 100) / std::log(compute);
    };
    return {exponent(row.loss_less - 0.005, row.compute + 0.005),
            exponent(row.loss_less + 0.005, row.compute - 0.005)};
}
interval gamma_of(const published& row) {
    return {(row.compute - 0.005 - 1) / row.eta, (row.compute + 0.005 - 1) / row.eta};
}

struct gain {
    double gamma, eta;
};

// MoRT Eq. 9, with Kaplan's constants: any would do.
struct scaling_law {
    double A = 8.8e13, B = 5.4e13, alpha = 0.076, beta = 0.095;

    [[nodiscard]] double loss(double parameters, double tokens) const {
        return std::pow(std::pow(A / parameters, alpha / beta) + B / tokens, beta);
    }
    // The least loss(parameters) over all sizes, by golden section: it falls and then rises.
    template <class Loss>
    [[nodiscard]] static double least(const Loss& of) {
        const double part = (std::sqrt(5.0) - 1) / 2;
        double from = std::log(1e3), to = std::log(1e18);
        for (int i = 0; i < 100; ++i) {
            const double low = to - part * (to - from), high = from + part * (to - from);
            if (of(std::exp(low)) < of(std::exp(high)))
                to = high;
            else
                from = low;
        }
        return of(std::exp(from));
    }
};

}  // namespace

TEST_CASE("equivalence: MoRT's effective size") {
    static_assert(mort_compute_ratio(0, 30) == 1);
    static_assert(mort_compute_ratio(0.25, 8) == 3);
    static_assert(mort_effective_parameters(1000, 0.25, 8) == 3000);
    // A backbone that counts as so many parameters reaches, with the compute C of its own size, what one without
    // modulators reaches with C times the ratio. Near a minimum the place found by 1e-8 costs 1e-15 of the loss.
    const scaling_law law;
    const double p = law.alpha * law.beta / (law.alpha + law.beta);
    for (const double compute : {1e18, 1e21})
        for (const gain& m : {gain{0.005, 50}, gain{0.25, 8}, gain{0, 80}}) {
            const double more = compute * mort_compute_ratio(m.gamma, m.eta);
            const double with = scaling_law::least([&](double n) {
                return law.loss(mort_effective_parameters(n, m.gamma, m.eta), compute / (6 * n));
            });
            const double without =
                scaling_law::least([&](double n) { return law.loss(n, compute / (6 * n)); });
            const double larger = scaling_law::least([&](double n) { return law.loss(n, more / (6 * n)); });
            CHECK(with == doctest::Approx(larger).epsilon(1e-12));
            CHECK(with / without == doctest::Approx(std::pow(more / compute, -p)).epsilon(1e-12));
        }
}

// Why gamma is an argument: the gammas that round to one figure do not round to another.
TEST_CASE("equivalence: no single gamma gives the three figures, a logarithm does") {
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = i + 1; j < 3; ++j)
            CHECK_FALSE(overlap(gamma_of(mort_figures[i]), gamma_of(mort_figures[j])));
    for (std::size_t i = 0; i < 3; ++i)
        CHECK(written("%.2f", 1.20 + 0.092 * std::log(mort_figures[i].eta / 30)) ==
              written("%.2f", mort_figures[i].compute));
}

// Loss and compute of a row say what p was. Each row allows an interval, as its digits are rounded; what is printed of
// eta 50 fits neither rho 0.3 nor rho 0.6, and so no single p fits all.
TEST_CASE("equivalence: the exponents that MoRT's tables imply, and the rows that disagree") {
    constexpr const char* implied[] = {"0.1081 to 0.1137", "0.1076 to 0.1120", "0.1116 to 0.1155",
                                       "0.1125 to 0.1167", "0.1135 to 0.1175"};
    std::string disagree;
    for (std::size_t i = 0; i < 5; ++i) {
        const interval p = exponent_of(mort_figures[i]);
        CHECK(written("%.4f", p.least) + " to " + written("%.4f", p.most) == implied[i]);
        for (std::size_t j = i + 1; j < 5; ++j)
            if (!overlap(p, exponent_of(mort_figures[j])))
                disagree += std::string(mort_figures[i].name) + " and " + mort_figures[j].name + "; ";
    }
    CHECK(disagree == "eta 50 and rho 0.3; eta 50 and rho 0.6; ");
}

}  // namespace analysis_equivalence_test
