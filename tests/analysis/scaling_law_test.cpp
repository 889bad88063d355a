// MoRT's law against minima by search, fits against laws that made the losses, what the paper's tables imply, and frontiers
// with known slopes and shifts.
#include <tiffin/analysis/frontier.hpp>
#include <tiffin/analysis/scaling_law.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace analysis_scaling_law_test {
using namespace tiffin;

namespace {

std::string written(const char* format, double v) {
    char text[32];
    std::snprintf(text, sizeof text, format, v);
    return text;
}

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

// Kaplan's constants: any would do.
constexpr scaling_law kaplan{8.8e13, 5.4e13, 0.076, 0.095};

// The least loss(parameters) over all sizes, by golden section: it falls and then rises.
struct smallest {
    double loss, parameters;

    template <class Loss>
    static smallest of(const Loss& of) {
        const double part = (std::sqrt(5.0) - 1) / 2;
        double from = std::log(1e3), to = std::log(1e18);
        for (int i = 0; i < 100; ++i) {
            const double low = to - part * (to - from), high = from + part * (to - from);
            if (of(std::exp(low)) < of(std::exp(high)))
                to = high;
            else
                from = low;
        }
        return {of(std::exp(from)), std::exp(from)};
    }
};

}  // namespace

// Near a minimum the place found to 1e-8 costs 1e-15 of the loss.
TEST_CASE("scaling_law: the optimum in closed form is the least loss") {
    for (const scaling_law& law :
         {kaplan, scaling_law{1e9, 3e10, 0.4, 0.3}, scaling_law{2e8, 1e12, 0.3, 0.9}})
        for (const double compute : {1e18, 1e21}) {
            const auto least = smallest::of([&](double n) { return law.loss(n, compute / (6 * n)); });
            CHECK(law.frontier(compute) == doctest::Approx(least.loss).epsilon(1e-12));
            CHECK(law.best_parameters(compute) == doctest::Approx(least.parameters).epsilon(1e-5));
            CHECK(law.loss(law.best_parameters(compute), law.best_tokens(compute)) ==
                  doctest::Approx(law.frontier(compute)).epsilon(1e-13));
            CHECK(std::log(law.frontier(1e3 * compute) / law.frontier(compute)) ==
                  doctest::Approx(-law.exponent() * std::log(1e3)).epsilon(1e-12));
        }
}

TEST_CASE("scaling_law: MoRT's effective size") {
    CHECK(indexed_gain{30, 0}.compute_saved() == 1);
    CHECK(indexed_gain{8, 0.25}.compute_saved() == 3);
    // A backbone that counts as so many parameters reaches, with the compute C of its own size, what one without
    // modulators reaches with C times the ratio.
    for (const double compute : {1e18, 1e21})
        for (const indexed_gain& m : {indexed_gain{50, 0.005}, indexed_gain{8, 0.25}, indexed_gain{80, 0}}) {
            const double more = compute * m.compute_saved();
            const auto with =
                smallest::of([&](double n) { return kaplan.loss(n * m.compute_saved(), compute / (6 * n)); });
            CHECK(with.loss == doctest::Approx(kaplan.frontier(more)).epsilon(1e-12));
            CHECK(with.loss / kaplan.frontier(compute) ==
                  doctest::Approx(m.loss_factor(kaplan.exponent())).epsilon(1e-12));
            CHECK(indexed_gain::gamma_of(with.loss / kaplan.frontier(compute), kaplan.exponent(), m.eta) ==
                  doctest::Approx(m.gamma).epsilon(1e-9));
        }
}

// Why gamma is an argument: the gammas that round to one figure do not round to another.
TEST_CASE("scaling_law: no single gamma gives the three figures, a logarithm does") {
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = i + 1; j < 3; ++j)
            CHECK_FALSE(overlap(gamma_of(mort_figures[i]), gamma_of(mort_figures[j])));
    for (std::size_t i = 0; i < 3; ++i)
        CHECK(written("%.2f", 1.20 + 0.092 * std::log(mort_figures[i].eta / 30)) ==
              written("%.2f", mort_figures[i].compute));
}

// Loss and compute of a row say what p was. Each row allows an interval, as its digits are rounded; what is printed of
// eta 50 fits neither rho 0.3 nor rho 0.6, and so no single p fits all.
TEST_CASE("scaling_law: the exponents that MoRT's tables imply, and the rows that disagree") {
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

namespace {

// A grid of sizes and token counts whose losses are those of a law, each with an error of log loss within +-noise.
std::vector<training_result> grid(const scaling_law& law, double noise, std::size_t side) {
    tiffin_test::random_numbers random(7);
    std::vector<training_result> made;
    for (std::size_t i = 0; i < side; ++i)
        for (std::size_t j = 0; j < side; ++j) {
            const double n = 1e6 * std::pow(3.0, static_cast<double>(i)),
                         d = 2e7 * std::pow(4.0, static_cast<double>(j));
            made.push_back(
                {n, d, law.loss(n, d) * std::exp(noise * static_cast<double>(random.signed_unit()))});
        }
    return made;
}
bool within(double value, double wanted, double spread) {
    return value / spread <= wanted && wanted <= value * spread;
}

}  // namespace

TEST_CASE("scaling_law: a fit finds the law that made the losses") {
    for (const scaling_law& law :
         {kaplan, scaling_law{1e9, 3e10, 0.4, 0.3}, scaling_law{2e8, 1e9, 0.12, 0.5}}) {
        CAPTURE(law.alpha);
        const fitted_law exact = fit_scaling_law(grid(law, 0, 4)).or_throw();
        CHECK(exact.law.alpha == doctest::Approx(law.alpha).epsilon(1e-4));
        CHECK(exact.law.beta == doctest::Approx(law.beta).epsilon(1e-4));
        CHECK(std::log(exact.law.a) == doctest::Approx(std::log(law.a)).epsilon(1e-4));
        CHECK(std::log(exact.law.b) == doctest::Approx(std::log(law.b)).epsilon(1e-4));
        CHECK(exact.residual < 1e-7);
        const fitted_law near = fit_scaling_law(grid(law, 0.01, 6)).or_throw();
        CHECK(within(near.law.a, law.a, near.spread.a));
        CHECK(within(near.law.b, law.b, near.spread.b));
        CHECK(within(near.law.alpha, law.alpha, near.spread.alpha));
        CHECK(within(near.law.beta, law.beta, near.spread.beta));
        CHECK(near.exponent_low < law.exponent());
        CHECK(law.exponent() < near.exponent_high);
        CHECK(near.exponent_high / near.exponent_low < 1.2);
        CHECK(near.residual < 0.01);
    }
}

TEST_CASE("scaling_law: runs that no law can be fitted to") {
    std::vector<training_result> runs = grid(kaplan, 0, 3);
    CHECK(fit_scaling_law(std::vector(runs.begin(), runs.begin() + 4)).failure().code == errc::size);
    for (training_result& r : runs) r.parameters = 1e7;
    CHECK(fit_scaling_law(runs).failure().code == errc::value);
    runs = grid(kaplan, 0, 3);
    for (const double wrong : {0.0, -1.0, HUGE_VAL, std::nan("")}) {
        runs[5].loss = wrong;
        const auto failed = fit_scaling_law(runs);
        REQUIRE(!failed);
        CHECK(failed.failure().message().find("runs[5]") != std::string::npos);
    }
}

namespace {

// The least losses of a law at compute `from`, twice and four times that and so on, times `factor`; the errors of their logarithms
// are nearly normal, with this deviation.
std::vector<frontier_point> frontier_of(const scaling_law& law, double factor, std::size_t count,
                                        double from = 1e18, double deviation = 0,
                                        tiffin_test::random_numbers* random = nullptr) {
    std::vector<frontier_point> made;
    for (std::size_t i = 0; i < count; ++i) {
        const double flops = from * std::pow(2.0, static_cast<double>(i));
        double error = 0;  // of variance 1: twelve of variance 1/12
        for (int k = 0; k < 12 && random != nullptr; ++k)
            error += static_cast<double>(random->signed_unit(0.5f));
        made.push_back({flops, factor * law.frontier(flops) * std::exp(deviation * error)});
    }
    return made;
}
bool covers(const estimate& e, double value) {
    return e.low <= value && value <= e.high;
}
// Of `count` 95 % intervals this many cover: three deviations of the binomial distribution, and as much again because the
// delta method is not exact.
void check_coverage(std::size_t covering, std::size_t count) {
    const auto n = static_cast<double>(count);
    CHECK(static_cast<double>(covering) / n == doctest::Approx(0.95).epsilon(6 * std::sqrt(0.05 / n)));
}

}  // namespace

TEST_CASE("frontier: Student's t") {
    for (const auto& [degrees, t] : {std::pair{1u, 12.7062},
                                     {2u, 4.3027},
                                     {3u, 3.1824},
                                     {4u, 2.7764},
                                     {7u, 2.3646},
                                     {8u, 2.3060},
                                     {30u, 2.0423},
                                     {1000u, 1.9623}})
        CHECK(detail::student_t(degrees) == doctest::Approx(t).epsilon(3e-5));
}

TEST_CASE("frontier: slopes, shifts and gammas of losses without errors") {
    const double p = kaplan.exponent();
    const auto fitted = fit_frontier(frontier_of(kaplan, 1, 5)).or_throw();
    CHECK(fitted.exponent.value == doctest::Approx(p).epsilon(1e-10));
    CHECK(fitted.exponent.high - fitted.exponent.low < 1e-6 * p);
    CHECK(fitted.residual < 1e-7);
    CHECK(fitted.loss(3e18) == doctest::Approx(kaplan.frontier(3e18)).epsilon(1e-9));
    for (const indexed_gain gain : {indexed_gain{30, 0.0067}, indexed_gain{4, 0.5}, indexed_gain{4, -0.05}})
        // The same budgets, and others.
        for (const double from : {1e18, 7e18}) {
            const double factor = gain.loss_factor(p);
            const auto shift =
                fit_shift(frontier_of(kaplan, 1, 5), frontier_of(kaplan, factor, 4, from)).or_throw();
            CHECK(shift.exponent.value == doctest::Approx(p).epsilon(1e-9));
            CHECK(std::fabs(shift.exponents_apart.value) < 1e-9);
            CHECK(shift.loss_factor().value == doctest::Approx(factor).epsilon(1e-9));
            CHECK(shift.compute_saved.value == doctest::Approx(gain.compute_saved()).epsilon(1e-8));
            CHECK(shift.gamma(gain.eta).value == doctest::Approx(gain.gamma).epsilon(1e-7));
            CHECK(covers(shift.gamma(gain.eta), shift.gamma(gain.eta).value));
        }
}

// Errors of log loss (e, -2 e, e) at equal distances leave slope and shift as they are; the rest is arithmetic.
TEST_CASE("frontier: intervals in closed form") {
    const double e = 0.01, step = std::log(2.0);
    auto points = frontier_of(kaplan, 1, 3), others = frontier_of(kaplan, 0.9, 3);
    for (auto* of : {&points, &others})
        for (std::size_t i = 0; i < 3; ++i) (*of)[i].loss *= std::exp(i == 1 ? -2 * e : e);
    const auto fitted = fit_frontier(points).or_throw();
    CHECK(fitted.exponent.value == doctest::Approx(kaplan.exponent()).epsilon(1e-9));
    // s^2 = 6 e^2 with one degree of freedom; the sum of squares of log compute is 2 step^2.
    CHECK(fitted.exponent.high - fitted.exponent.value ==
          doctest::Approx(12.7062 * std::sqrt(6 * e * e / (2 * step * step))).epsilon(1e-4));
    CHECK(fitted.exponent.value - fitted.exponent.low ==
          doctest::Approx(fitted.exponent.high - fitted.exponent.value).epsilon(1e-9));
    CHECK(fitted.residual == doctest::Approx(std::sqrt(2 * e * e)).epsilon(1e-6));
    // Two such: s^2 = 12 e^2 / 3, and 12 e^2 / 2 where each has its own slope.
    const auto shift = fit_shift(points, others).or_throw();
    CHECK(shift.log_factor.value == doctest::Approx(std::log(0.9)).epsilon(1e-9));
    CHECK(shift.log_factor.high - shift.log_factor.value ==
          doctest::Approx(3.1824 * std::sqrt(4 * e * e * 2 / 3)).epsilon(1e-4));
    CHECK(shift.exponents_apart.high ==
          doctest::Approx(4.3027 * std::sqrt(6 * e * e / (step * step))).epsilon(1e-4));
    const double p = kaplan.exponent(), ratio = std::log(0.9) / p;
    CHECK(std::log(shift.compute_saved.high / shift.compute_saved.value) ==
          doctest::Approx(3.1824 * std::sqrt(4 * e * e * (2.0 / 3 + ratio * ratio / (4 * step * step))) / p)
              .epsilon(1e-4));
}

TEST_CASE("frontier: 95 % of the intervals cover what made the losses") {
    constexpr std::size_t draws = 2000;
    tiffin_test::random_numbers random(11);
    const double p = kaplan.exponent(), deviation = 0.002;
    const indexed_gain gain{4, 0.25};
    std::size_t slopes = 0, apart = 0, factors = 0, saved = 0, gammas = 0;
    for (std::size_t i = 0; i < draws; ++i) {
        const auto first = frontier_of(kaplan, 1, 5, 1e18, deviation, &random);
        const auto second = frontier_of(kaplan, gain.loss_factor(p), 4, 3e18, deviation, &random);
        slopes += covers(fit_frontier(first).or_throw().exponent, p) ? 1u : 0u;
        const auto shift = fit_shift(first, second).or_throw();
        apart += covers(shift.exponents_apart, 0) ? 1u : 0u;
        factors += covers(shift.log_factor, std::log(gain.loss_factor(p))) ? 1u : 0u;
        saved += covers(shift.compute_saved, gain.compute_saved()) ? 1u : 0u;
        std::vector<gain_measurement> measured;
        for (const frontier_point& point : frontier_of(kaplan, 1, 4, 1e18, deviation, &random)) {
            const indexed_gain here{1.0 + static_cast<double>(measured.size()), 0.25};
            measured.push_back(
                {here.eta, 1, point.loss / kaplan.frontier(point.flops) * here.loss_factor(p), p});
        }
        gammas += covers(fit_gamma(measured).or_throw()[0].gamma, 0.25) ? 1u : 0u;
    }
    for (const std::size_t covering : {slopes, apart, factors, saved, gammas})
        check_coverage(covering, draws);
}

TEST_CASE("frontier: gamma by rho") {
    const double p = kaplan.exponent();
    std::vector<gain_measurement> measured;
    for (const double eta : {2.0, 3.0, 5.0})
        for (const double rho : {1.0, 0.25, 0.5})
            measured.push_back({eta, rho, indexed_gain{eta, 0.4 * rho - 0.15}.loss_factor(p), p});
    const auto exact = fit_gamma(measured).or_throw();
    REQUIRE(exact.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(exact[i].rho == std::vector{0.25, 0.5, 1.0}[i]);
        CHECK(exact[i].count == 3);
        CHECK(exact[i].gamma.value == doctest::Approx(0.4 * exact[i].rho - 0.15).epsilon(1e-9));
        CHECK(exact[i].gamma.high - exact[i].gamma.low < 1e-9);
    }
    // One is refuted by all others' 1 + gamma eta above 0.
    const std::vector<gain_measurement> unlike{{1, 1, std::pow(0.5, -p), p}, {10, 1, std::pow(2.0, -p), p}};
    const double between = fit_gamma(unlike).or_throw()[0].gamma.value;
    CHECK(-0.1 < between);
    CHECK(between < 0.1);
    // MoRT's tables: 30, 50 and 80 at rho 1 need 0.0067, 0.0050 and 0.0036, which an interval of three is too wide to refute;
    // the other two rho have one each.
    std::vector<gain_measurement> published;
    for (const auto& row : mort_figures)
        published.push_back({row.eta, row.rho, 1 - row.loss_less / 100,
                             -std::log(1 - row.loss_less / 100) / std::log(row.compute)});
    const auto fitted = fit_gamma(published).or_throw();
    REQUIRE(fitted.size() == 3);
    CHECK(written("%.4f", fitted[0].gamma.value) == "0.0034");
    CHECK(written("%.4f", fitted[1].gamma.value) == "0.0035");
    CHECK(fitted[0].gamma.low == -HUGE_VAL);
    CHECK(fitted[0].gamma.high == HUGE_VAL);
    CHECK(fitted[2].gamma.low < 0.0036);
    CHECK(fitted[2].gamma.high > 0.0067);
    CHECK(fitted[2].residual > 1e-3);
}

TEST_CASE("frontier: points that nothing can be fitted to") {
    const auto good = frontier_of(kaplan, 1, 4);
    const auto few = std::vector(good.begin(), good.begin() + 2);
    CHECK(fit_frontier(few).failure().message().find("points: are 2; a slope") != std::string::npos);
    CHECK(fit_frontier(few).failure().code == errc::size);
    CHECK(fit_shift(few, good).failure().message().find("first: are 2") != std::string::npos);
    CHECK(fit_shift(good, few).failure().message().find("second: are 2") != std::string::npos);
    auto same = good;
    for (frontier_point& point : same) point.flops = 1e18;
    CHECK(fit_frontier(same).failure().code == errc::value);
    CHECK(fit_frontier(same).failure().message().find("all of one budget") != std::string::npos);
    auto rising = good;
    for (frontier_point& point : rising) point.loss = 1 / point.loss;
    CHECK(fit_frontier(rising).or_throw().exponent.value < 0);
    CHECK(fit_shift(rising, rising).failure().message().find("does not fall") != std::string::npos);
    CHECK(fit_gamma({}).failure().code == errc::size);
    for (const double wrong : {0.0, -1.0, HUGE_VAL, std::nan("")}) {
        auto bad = good;
        bad[2].loss = wrong;
        CHECK(fit_frontier(bad).failure().message().find("points[2]") != std::string::npos);
        bad = good;
        bad[1].flops = wrong;
        CHECK(fit_shift(good, bad).failure().message().find("second[1]") != std::string::npos);
        const std::vector<gain_measurement> measured{{1, 1, 0.9, 0.1}, {wrong, 1, 0.9, 0.1}};
        CHECK(fit_gamma(measured).failure().message().find("measured[1]") != std::string::npos);
    }
}

}  // namespace analysis_scaling_law_test
