// The AdamW formula, over contiguous values.
#pragma once

#include <tiffin/train/prepare_training.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// Defaults: those of MeKi and MoRT (docs/training.md#published-settings).
struct adamw_options {
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double decay = 0.1;
    double clip = 1;  // the largest norm of all gradients; 0: not clipped
    // Rows of tables in memory decay in every step, as in dense AdamW; else in those in which a token has read them.
    bool resting_rows_decay = false;
};

namespace learn_detail {

// The constants of a step, the same for all values of a tensor or of a row.
struct adamw_factors {
    double rate, clipped, keep, beta1, beta2, size, root, eps;

    // t: the updates of these values, this one included.
    adamw_factors(const adamw_options& o, double learning_rate, double clip, double decay, std::uint64_t t)
        : rate(learning_rate),
          clipped(clip),
          keep(1 - learning_rate * decay),
          beta1(o.beta1),
          beta2(o.beta2),
          size(1 / (1 - std::pow(o.beta1, static_cast<double>(t)))),
          root(1 / std::sqrt(1 - std::pow(o.beta2, static_cast<double>(t)))),
          eps(o.eps) {}
};

// See adamw.
template <class Machine>
void adamw_update(typename Machine::number* w, typename Machine::number* m, typename Machine::number* v,
                  const typename Machine::number* g, std::size_t count, const adamw_factors& f) {
    using std::sqrt;
    using number = typename Machine::number;
    const auto all = [](double x) { return Machine::all(static_cast<number>(x)); };
    const auto clipped = all(f.clipped), keep = all(f.keep), size = all(f.rate * f.size), root = all(f.root);
    const auto beta1 = all(f.beta1), beta2 = all(f.beta2), rest1 = all(1 - f.beta1), rest2 = all(1 - f.beta2);
    const auto eps = all(f.eps);
    for (std::size_t i = 0; i < count; i += Machine::width) {
        const std::size_t n = std::min(Machine::width, count - i);
        const auto gradient = Machine::load(g + i, n) * clipped;
        const auto first = beta1 * Machine::load(m + i, n) + rest1 * gradient;
        const auto second = beta2 * Machine::load(v + i, n) + rest2 * (gradient * gradient);
        Machine::store(first, m + i, n);
        Machine::store(second, v + i, n);
        Machine::store(keep * Machine::load(w + i, n) - size * first / (sqrt(second) * root + eps), w + i, n);
    }
}

// sum of g^2, in pieces in registers, then in double.
template <class Machine>
double squares(const typename Machine::number* g, std::size_t count) {
    using number = typename Machine::number;
    constexpr std::size_t piece = 32 * Machine::width;
    double sum = 0;
    for (std::size_t first = 0; first < count; first += piece) {
        auto some = Machine::all(number(0));
        for (std::size_t i = first; i < std::min(count, first + piece); i += Machine::width) {
            const auto one = Machine::load(g + i, std::min(Machine::width, count - i));
            some = some + one * one;
        }
        sum += static_cast<double>(Machine::sum(some));
    }
    return sum;
}

}  // namespace learn_detail

TIFFIN_END
