// MoRT's law of loss over parameters and training tokens, its optimum at a given compute, and what token-indexed parameters
// gain by it.
#pragma once

#include <tiffin/error.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

TIFFIN_BEGIN

// L(N, D) = ((A / N)^(alpha / beta) + B / D)^beta; a step on D tokens takes C = 6 N D FLOPs. All in parameters, tokens,
// FLOPs and nats. Source: MoRT, Eq. 9 to 15; docs/layers.md#scaling.
struct scaling_law {
    double a = 1, b = 1, alpha = 1, beta = 1;

    [[nodiscard]] double loss(double parameters, double tokens) const {
        return std::pow(std::pow(a / parameters, alpha / beta) + b / tokens, beta);
    }
    // p, by which the least loss falls with compute: L*(C) = constant * C^-p.
    [[nodiscard]] double exponent() const noexcept { return alpha * beta / (alpha + beta); }
    // The parameters of the least loss at this compute; its tokens are flops / (6 parameters).
    [[nodiscard]] double best_parameters(double flops) const {
        const double ratio = alpha / beta;
        return std::pow(ratio * std::pow(a, ratio) * flops / (6 * b), 1 / (1 + ratio));
    }
    [[nodiscard]] double best_tokens(double flops) const { return flops / (6 * best_parameters(flops)); }
    // L*(C), the least loss at this compute.
    [[nodiscard]] double frontier(double flops) const {
        const double p = exponent();
        return std::pow(1 + alpha / beta, beta) * std::pow(6 * a * b * beta / alpha, p) * std::pow(flops, -p);
    }
};

// Token-indexed parameters beside `eta` times fewer others, which count as N (1 + gamma eta) of these.
struct indexed_gain {
    double eta = 0;  // token-indexed parameters over all others
    double gamma =
        0;  // what one of them is worth; it depends on rho, the fraction of experts that a token chooses

    // Compute that reaches the same loss without them, over that with them.
    [[nodiscard]] double compute_saved() const noexcept { return 1 + gamma * eta; }
    // The loss over that without them, at the same compute, on a frontier that falls with C^-exponent.
    [[nodiscard]] double loss_factor(double exponent) const { return std::pow(compute_saved(), -exponent); }
    // The gamma of a measured loss_factor().
    static double gamma_of(double factor, double exponent, double eta) {
        return (std::pow(factor, -1 / exponent) - 1) / eta;
    }
};

struct training_result {
    double parameters, tokens, loss;
};

// A fitted law. An interval is [value / spread, value * spread], 95 % where errors of log loss are normal.
struct fitted_law {
    scaling_law law;
    scaling_law spread;
    double exponent_low = 0, exponent_high = 0;  // of the frontier
    double residual = 0;                         // root mean square of the errors of log loss
};

namespace detail {

// Four logarithms: of a, b, alpha and beta.
using law_point = std::array<double, 4>;
using law_matrix = std::array<law_point, 4>;

inline scaling_law law_at(const law_point& x) {
    return {std::exp(x[0]), std::exp(x[1]), std::exp(x[2]), std::exp(x[3])};
}

// The inverse of a symmetric positive matrix, by elimination. False where it is singular to rounding.
inline bool invert(law_matrix m, law_matrix& to) {
    for (std::size_t i = 0; i < 4; ++i)
        for (std::size_t j = 0; j < 4; ++j) to[i][j] = i == j ? 1 : 0;
    law_point scale{};
    for (std::size_t i = 0; i < 4; ++i) scale[i] = m[i][i];
    for (std::size_t i = 0; i < 4; ++i) {
        if (!(m[i][i] > 1e-13 * scale[i])) return false;
        const double pivot = m[i][i];
        for (std::size_t j = 0; j < 4; ++j) {
            m[i][j] /= pivot;
            to[i][j] /= pivot;
        }
        for (std::size_t k = 0; k < 4; ++k) {
            if (k == i) continue;
            const double factor = m[k][i];
            for (std::size_t j = 0; j < 4; ++j) {
                m[k][j] -= factor * m[i][j];
                to[k][j] -= factor * to[i][j];
            }
        }
    }
    return true;
}

// The errors of log loss at x, and J^T J and J^T e.
struct law_fit {
    std::span<const training_result> runs;

    [[nodiscard]] double error(const law_point& x, const training_result& r) const {
        return std::log(law_at(x).loss(r.parameters, r.tokens) / r.loss);
    }
    [[nodiscard]] double squares(const law_point& x) const {
        double sum = 0;
        for (const training_result& r : runs) sum += error(x, r) * error(x, r);
        return sum;
    }
    void differentiate(const law_point& x, law_matrix& normal, law_point& gradient) const {
        normal = {};
        gradient = {};
        constexpr double h = 1e-5;
        for (const training_result& r : runs) {
            law_point slope{};
            for (std::size_t i = 0; i < 4; ++i) {
                law_point above = x, below = x;
                above[i] += h;
                below[i] -= h;
                slope[i] = (error(above, r) - error(below, r)) / (2 * h);
            }
            const double e = error(x, r);
            for (std::size_t i = 0; i < 4; ++i) {
                gradient[i] += slope[i] * e;
                for (std::size_t j = 0; j < 4; ++j) normal[i][j] += slope[i] * slope[j];
            }
        }
    }
    // Levenberg and Marquardt's steps from x on, until none lowers the squares.
    [[nodiscard]] law_point descend(law_point x) const {
        double best = squares(x), damping = 1e-3;
        for (int step = 0; step < 500 && damping < 1e12; ++step) {
            law_matrix normal, inverse;
            law_point gradient;
            differentiate(x, normal, gradient);
            for (std::size_t i = 0; i < 4; ++i) normal[i][i] *= 1 + damping;
            if (!invert(normal, inverse)) {
                damping *= 10;
                continue;
            }
            law_point next = x;
            for (std::size_t i = 0; i < 4; ++i)
                for (std::size_t j = 0; j < 4; ++j) next[i] -= inverse[i][j] * gradient[j];
            const double now = squares(next);
            if (!(now < best)) {
                damping *= 10;
                continue;
            }
            const bool done = best - now <= 1e-14 * best;
            x = next;
            best = now;
            damping = std::max(damping / 10, 1e-12);
            if (done) break;
        }
        return x;
    }
};

}  // namespace detail

// The law of least squared errors of log loss, from nine starts.
// Errors: errc::size for fewer than 5 runs; errc::value for numbers that are not positive, or for runs that do not tell A, B,
//   alpha and beta apart, such as those of one size.
inline result<fitted_law> fit_scaling_law(std::span<const training_result> runs) {
    if (runs.size() < 5)
        return failure(errc::size, "runs", "are ", runs.size(),
                       "; a law of four numbers is fitted to 5 or more");
    double n = 0, d = 0, loss = 0;  // means of logarithms
    for (std::size_t i = 0; i < runs.size(); ++i) {
        for (const double x : {runs[i].parameters, runs[i].tokens, runs[i].loss})
            if (!(x > 0) || !std::isfinite(x))
                return failure(errc::value, "runs", "runs[", i, "] has a number that is not positive");
        n += std::log(runs[i].parameters) / static_cast<double>(runs.size());
        d += std::log(runs[i].tokens) / static_cast<double>(runs.size());
        loss += std::log(runs[i].loss) / static_cast<double>(runs.size());
    }
    const detail::law_fit fit{runs};
    detail::law_point best{};
    double least = HUGE_VAL;
    for (const double alpha : {0.1, 0.3, 0.9})
        for (const double beta : {0.1, 0.3, 0.9}) {
            // Both terms are half of the mean loss's.
            const double half = loss / beta - std::log(2.0);
            const detail::law_point x =
                fit.descend({n + half * beta / alpha, d + half, std::log(alpha), std::log(beta)});
            if (const double now = fit.squares(x); now < least) {
                least = now;
                best = x;
            }
        }
    detail::law_matrix normal, covariance;
    detail::law_point gradient;
    fit.differentiate(best, normal, gradient);
    if (!std::isfinite(least) || !detail::invert(normal, covariance))
        return failure(errc::value, "runs",
                       "do not tell the four numbers of a law apart: their sizes and token "
                       "counts must differ, apart from each other");
    const double variance = least / static_cast<double>(runs.size() - 4);
    fitted_law made{detail::law_at(best), {}, 0, 0, std::sqrt(least / static_cast<double>(runs.size()))};
    const auto spread = [&](std::size_t i) {
        return std::exp(1.96 * std::sqrt(variance * covariance[i][i]));
    };
    made.spread = {spread(0), spread(1), spread(2), spread(3)};
    // p = alpha beta / (alpha + beta): d log p = (beta d log alpha + alpha d log beta) / (alpha + beta).
    const double alpha = made.law.alpha, beta = made.law.beta, sum = alpha + beta;
    const double by_alpha = beta / sum, by_beta = alpha / sum;
    const double of_log =
        variance * (by_alpha * by_alpha * covariance[2][2] + by_beta * by_beta * covariance[3][3] +
                    2 * by_alpha * by_beta * covariance[2][3]);
    const double factor = std::exp(1.96 * std::sqrt(std::max(of_log, 0.0)));
    made.exponent_low = made.law.exponent() / factor;
    made.exponent_high = made.law.exponent() * factor;
    return made;
}

TIFFIN_END
