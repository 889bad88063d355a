// Softmax cross-entropy, the loss of a language model, with its gradient.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/executor/checked_executor.hpp>
#include <tiffin/train/prepare_training.hpp>
#include <tiffin/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

TIFFIN_BEGIN

// The target of a row that has no loss.
inline constexpr std::int32_t no_target = -1;

namespace learn_detail {

// One row: z becomes scale (softmax(z) - [target]); returns -log softmax(z)[target].
template <class Machine>
double cross_entropy_row(typename Machine::number* z, std::size_t vocab, std::size_t target,
                         typename Machine::number scale) {
    using std::exp;
    using std::max;
    using number = typename Machine::number;
    constexpr std::size_t width = Machine::width;
    const std::size_t whole = vocab / width * width;
    number most = z[0];
    if (whole != 0) {
        auto all = Machine::load(z, width);
        for (std::size_t i = width; i < whole; i += width) all = max(all, Machine::load(z + i, width));
        number part[width];
        Machine::store(all, part, width);
        for (const number p : part) most = max(most, p);
    }
    for (std::size_t i = whole; i < vocab; ++i) most = max(most, z[i]);

    const double surprise = static_cast<double>(most) - static_cast<double>(z[target]);
    double sum = 0;
    constexpr std::size_t piece = 32 * width;  // summed in registers, then in double
    for (std::size_t first = 0; first < vocab; first += piece) {
        const std::size_t end = std::min(vocab, first + piece);
        auto some = Machine::all(number(0));
        for (std::size_t i = first; i < end; i += width) {
            const std::size_t n = std::min(width, end - i);
            const auto e = Machine::first(exp(Machine::load(z + i, n) - Machine::all(most)), n);
            Machine::store(e, z + i, n);
            some = some + e;
        }
        sum += static_cast<double>(Machine::sum(some));
    }
    const auto factor = Machine::all(static_cast<number>(static_cast<double>(scale) / sum));
    for (std::size_t i = 0; i < vocab; i += width) {
        const std::size_t n = std::min(width, vocab - i);
        Machine::store(Machine::load(z + i, n) * factor, z + i, n);
    }
    z[target] -= scale;
    return std::log(sum) + surprise;
}

}  // namespace learn_detail

// Softmax cross-entropy over a vocabulary; the gradient overwrites the logits.
// losses[t] = -log softmax(logits[t])[targets[t]]; logits[t] <- scale (softmax(logits[t]) - one at targets[t]). With
// scale = 1 / (tokens of the step) that is the gradient of the mean. Where the target is no_target, both are 0.
// Shapes: logits (T, V), targets, losses (T). No other memory of (T, V) is used: a head with V = 50000 is computed for
//   some tokens at a time, and its gradients accumulate (examples/train/language_model.hpp).
// Numerics: sums of 32 registers, then in double. A row with NaN or +infinity, or of -infinity alone, has a NaN loss
//   and gradient. Any other -infinity is a token of probability 0: its gradient is 0, and the loss is infinite where it
//   is the target.
// Errors: errc::size, and errc::token_id for a target outside [0, V), before anything is written.
// Cost: an exponential per logit, and three passes over each row. No allocation.
template <trains Backend>
status softmax_cross_entropy(const Backend&, matrix_view<training_number<Backend>> logits,
                             std::span<const std::int32_t> targets, training_number<Backend> scale,
                             std::span<double> losses, executor_ref execute = serially) {
    using machine = typename training_machine<Backend>::type;
    if (targets.size() != logits.rows || losses.size() != logits.rows)
        return failure(errc::size, targets.size() != logits.rows ? "targets" : "losses", "has ",
                       targets.size() != logits.rows ? targets.size() : losses.size(), " elements for ",
                       logits.rows, " rows of logits");
    if (logits.stride < logits.cols && logits.rows > 1)
        return failure(errc::size, "logits", "has a row stride of ", logits.stride, ", less than its width ",
                       logits.cols);
    for (std::size_t t = 0; t < targets.size(); ++t)
        if (targets[t] != no_target &&
            (targets[t] < 0 || static_cast<std::size_t>(targets[t]) >= logits.cols))
            return failure(errc::token_id, "targets", "token ", t, " is ", targets[t],
                           "; the vocabulary has ", logits.cols);
    constexpr std::size_t together = 16;
    const auto task = [&](std::size_t i) {
        for (std::size_t t = i * together; t < std::min(logits.rows, (i + 1) * together); ++t) {
            auto* const row = logits.data + t * logits.stride;
            losses[t] = 0;
            if (targets[t] == no_target)
                std::fill_n(row, logits.cols, training_number<Backend>(0));
            else
                losses[t] = learn_detail::cross_entropy_row<machine>(
                    row, logits.cols, static_cast<std::size_t>(targets[t]), scale);
        }
    };
    return detail::run_each_once(execute, (logits.rows + together - 1) / together, task_ref(task));
}

TIFFIN_END
