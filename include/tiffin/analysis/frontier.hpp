// Frontiers as they were measured, the least loss at each of several budgets of compute: how fast one falls, how far another
// lies below it, and what a token-indexed parameter is worth by that.
#pragma once

#include <tiffin/analysis/scaling_law.hpp>
#include <tiffin/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numbers>
#include <span>
#include <vector>

TIFFIN_BEGIN

// A value and its 95 % interval, where errors of log loss are normal and as large everywhere.
struct estimate {
    double value = 0, low = 0, high = 0;
};

struct frontier_point {
    double flops, loss;
};

// loss = constant * C^-p. There is no irreducible loss in it, as there is none in scaling_law: where losses come near one, p
// falls with compute, and what is fitted is the mean slope of the budgets that were given.
struct fitted_frontier {
    estimate exponent;  // p
    double constant = 0;
    double residual = 0;  // root mean square of the errors of log loss

    [[nodiscard]] double loss(double flops) const { return constant * std::pow(flops, -exponent.value); }
};

// A second frontier beside a first: both with one slope, the second's losses times a factor.
struct frontier_shift {
    estimate exponent;         // p of both
    estimate exponents_apart;  // the second's p less the first's, where each has its own
    estimate log_factor;       // ln of the second's loss over the first's, at the same compute
    estimate compute_saved;    // the first's compute over the second's, at the same loss
    double residual = 0;       // root mean square of the errors of log loss

    // g, the second's loss over the first's.
    [[nodiscard]] estimate loss_factor() const {
        return {std::exp(log_factor.value), std::exp(log_factor.low), std::exp(log_factor.high)};
    }
    // gamma = (compute_saved - 1) / eta: of the value and of the ends of the interval.
    [[nodiscard]] estimate gamma(double eta) const {
        return {(compute_saved.value - 1) / eta, (compute_saved.low - 1) / eta,
                (compute_saved.high - 1) / eta};
    }
};

// What a pair of frontiers says at one eta and rho.
struct gain_measurement {
    double eta = 0;          // token-indexed parameters over all others
    double rho = 0;          // the fraction of experts that a token chooses
    double loss_factor = 0;  // the loss over that without them, at the same compute
    double exponent = 0;     // p of the frontier without them; taken as exact
};

struct fitted_gamma {
    double rho = 0;
    estimate gamma;
    std::size_t count = 0;  // measurements
    double residual = 0;    // root mean square of the errors of log loss
};

namespace detail {

// t that a share of 95 % of Student's distribution lies within: its integral in closed form, inverted by bisection.
inline double student_t(std::size_t degrees) {
    const std::size_t n = std::min<std::size_t>(degrees, 10000);
    const auto within = [n](double angle) {
        const double c = std::cos(angle), s = std::sin(angle);
        double term = n % 2 == 1 ? c : 1, sum = n == 1 ? 0 : term;
        for (std::size_t k = n % 2 == 1 ? 3 : 2; k + 2 <= n; k += 2) {
            term *= c * c * static_cast<double>(k - 1) / static_cast<double>(k);
            sum += term;
        }
        return n % 2 == 1 ? 2 / std::numbers::pi * (angle + s * sum) : s * sum;
    };
    double low = 0, high = std::numbers::pi / 2;
    for (int i = 0; i < 60; ++i) {
        const double middle = (low + high) / 2;
        (within(middle) < 0.95 ? low : high) = middle;
    }
    return std::sqrt(static_cast<double>(n)) * std::tan(low);
}

inline estimate around(double value, double variance, std::size_t degrees) {
    const double half = student_t(degrees) * std::sqrt(std::max(variance, 0.0));
    return {value, value - half, value + half};
}

// Sums over the logarithms of a frontier's points, around their means.
struct frontier_sums {
    double count = 0, x = 0, y = 0, xx = 0, xy = 0, yy = 0;

    // The squared errors about the line of this slope through the means.
    [[nodiscard]] double squares(double slope) const {
        return std::max(yy - 2 * slope * xy + slope * slope * xx, 0.0);
    }
};

inline result<frontier_sums> sums_of(std::span<const frontier_point> points, const char* name) {
    if (points.size() < 3)
        return failure(errc::size, name, "are ", points.size(),
                       "; a slope and its interval are fitted to 3 or more");
    frontier_sums made;
    for (std::size_t i = 0; i < points.size(); ++i) {
        for (const double v : {points[i].flops, points[i].loss})
            if (!(v > 0) || !std::isfinite(v))
                return failure(errc::value, name, name, "[", i, "] has a number that is not positive");
        made.count += 1;
        made.x += std::log(points[i].flops);
        made.y += std::log(points[i].loss);
    }
    made.x /= made.count;
    made.y /= made.count;
    for (const frontier_point& p : points) {
        const double x = std::log(p.flops) - made.x, y = std::log(p.loss) - made.y;
        made.xx += x * x;
        made.xy += x * y;
        made.yy += y * y;
    }
    // Budgets that differ by less than 1e-6 of themselves are one.
    if (!(made.xx > 1e-12 * made.count))
        return failure(errc::value, name, "are all of one budget; a slope takes budgets that differ");
    return made;
}

}  // namespace detail

// The line of least squared errors of log loss over log compute.
// Numerics: intervals by Student's t with two degrees of freedom fewer than points.
// Errors: errc::size for fewer than 3 points; errc::value for numbers that are not positive, or budgets that are all the
//   same.
inline result<fitted_frontier> fit_frontier(std::span<const frontier_point> points) {
    const auto sums = detail::sums_of(points, "points");
    if (!sums) return sums.failure();
    const double slope = sums->xy / sums->xx, squares = sums->squares(slope);
    const std::size_t degrees = points.size() - 2;
    return fitted_frontier{detail::around(-slope, squares / static_cast<double>(degrees) / sums->xx, degrees),
                           std::exp(sums->y - slope * sums->x), std::sqrt(squares / sums->count)};
}

// Two parallel lines of least squared errors of log loss: how far `second` lies from `first`. Their budgets may differ.
// Numerics: Student's t with three degrees of freedom fewer than points (exponents_apart: four). ln of compute_saved is
//   -log_factor / p; its interval is the delta method's, which is for a p that is many times its error.
// Errors: those of fit_frontier of either; errc::value where the loss does not fall with compute.
inline result<frontier_shift> fit_shift(std::span<const frontier_point> first,
                                        std::span<const frontier_point> second) {
    const auto a = detail::sums_of(first, "first"), b = detail::sums_of(second, "second");
    if (!a) return a.failure();
    if (!b) return b.failure();
    const double xx = a->xx + b->xx, count = a->count + b->count;
    const double slope = (a->xy + b->xy) / xx, by = b->x - a->x;
    const double shift = b->y - a->y - slope * by;
    if (!(slope < 0))
        return failure(errc::value, "first", "and second: their loss does not fall with compute");
    const double squares = a->squares(slope) + b->squares(slope);
    const std::size_t degrees = first.size() + second.size() - 3;
    const double variance = squares / static_cast<double>(degrees), of_slope = variance / xx;
    const double of_shift = variance * (1 / a->count + 1 / b->count) + by * by * of_slope;
    // Of shift / slope: the shift's error is independent of the slope's but for -by times it.
    const double ratio = shift / slope;
    const double of_ratio =
        (of_shift + ratio * ratio * of_slope + 2 * ratio * by * of_slope) / (slope * slope);
    const estimate saved = detail::around(ratio, of_ratio, degrees);
    const double slope_a = a->xy / a->xx, slope_b = b->xy / b->xx;
    const double apart = (a->squares(slope_a) + b->squares(slope_b)) / static_cast<double>(degrees - 1);
    return frontier_shift{detail::around(-slope, of_slope, degrees),
                          detail::around(slope_a - slope_b, apart * (1 / a->xx + 1 / b->xx), degrees - 1),
                          detail::around(shift, of_shift, degrees),
                          {std::exp(saved.value), std::exp(saved.low), std::exp(saved.high)},
                          std::sqrt(squares / count)};
}

// gamma(rho), for each rho that was measured, by rho: of least squared errors of log loss over its eta, with the law's
// ln g = -p ln(1 + gamma eta).
// Numerics: Student's t with one degree of freedom fewer than measurements, the error of gamma by the delta method, so that
//   it says too how far one gamma is from serving all eta; the interval of a single measurement is all numbers.
// Errors: errc::size for no measurement; errc::value for numbers that are not positive.
inline result<std::vector<fitted_gamma>> fit_gamma(std::span<const gain_measurement> measured) {
    if (measured.empty())
        return failure(errc::size, "measured", "are none; gamma is fitted to 1 or more, an interval to 2");
    std::map<double, std::vector<gain_measurement>> by_rho;
    for (std::size_t i = 0; i < measured.size(); ++i) {
        const gain_measurement& m = measured[i];
        for (const double v : {m.eta, m.rho, m.loss_factor, m.exponent})
            if (!(v > 0) || !std::isfinite(v))
                return failure(errc::value, "measured", "measured[", i,
                               "] has a number that is not positive");
        by_rho[m.rho].push_back(m);
    }
    std::vector<fitted_gamma> made;
    for (const auto& entry : by_rho) {
        const std::vector<gain_measurement>& of = entry.second;
        const auto error = [](const gain_measurement& m, double gamma) {
            return std::log(m.loss_factor) + m.exponent * std::log1p(gamma * m.eta);
        };
        const auto slope = [](const gain_measurement& m, double gamma) {
            return m.exponent * m.eta / (1 + gamma * m.eta);
        };
        // At the least of the single gammas all errors are 0 or below, at the most 0 or above: in between is the minimum,
        // and above where some 1 + gamma eta is 0.
        double low = HUGE_VAL, high = -HUGE_VAL, most_eta = 0;
        for (const gain_measurement& m : of) {
            const double one = indexed_gain::gamma_of(m.loss_factor, m.exponent, m.eta);
            low = std::min(low, one);
            high = std::max(high, one);
            most_eta = std::max(most_eta, m.eta);
        }
        low = std::max(low, -1 / most_eta);
        for (int i = 0; i < 100; ++i) {
            const double middle = (low + high) / 2;
            double rise = 0;
            for (const gain_measurement& m : of) rise += slope(m, middle) * error(m, middle);
            (rise < 0 ? low : high) = middle;
        }
        const double gamma = (low + high) / 2;
        double squares = 0, slopes = 0;
        for (const gain_measurement& m : of) {
            squares += error(m, gamma) * error(m, gamma);
            slopes += slope(m, gamma) * slope(m, gamma);
        }
        const std::size_t degrees = of.size() - 1;
        made.push_back({entry.first,
                        degrees == 0
                            ? estimate{gamma, -HUGE_VAL, HUGE_VAL}
                            : detail::around(gamma, squares / static_cast<double>(degrees) / slopes, degrees),
                        of.size(), std::sqrt(squares / static_cast<double>(of.size()))});
    }
    return made;
}

TIFFIN_END
