// One AdamW step: checks of the gradients, their norm, and the update.
#pragma once

#include <tiffin/learn/adamw.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

TIFFIN_BEGIN

template <trains Backend>
status adamw<Backend>::step(double rate, executor_ref execute,
                            const std::function<double(double)>& over_ranks) {
    // An error on this rank is passed to the other ranks, which wait in over_ranks(), as NaN.
    status wrong_here;
    for (const tensor& t : tensors_) {
        if (t.rows != nullptr && wrong_here.ok()) wrong_here = check_rows(t);
        if (options_.resting_rows_decay && t.rows != nullptr && !t.own_rows && wrong_here.ok())
            wrong_here = failure(errc::option, t.name,
                                 "has rows that are not all in memory: those that rest cannot decay");
    }
    if (wrong_here.ok())
        wrong_here = each_piece(execute, [&](tensor& t, std::size_t i, std::size_t at) {
            double sum = 0;
            in_piece(t, i, [&](const number* g, std::size_t count, const auto&) {
                sum += learn_detail::squares<machine>(g, count);
            });
            piece_sums_[at] = sum;
        });
    if (!wrong_here) {
        if (over_ranks) static_cast<void>(over_ranks(std::numeric_limits<double>::quiet_NaN()));
        return wrong_here;
    }
    double here = 0, elsewhere = 0;  // of tensors complete on this rank; of rows that may be sharded
    std::size_t at = 0;
    const tensor* wrong = nullptr;
    for (const tensor& t : tensors_) {
        double own = 0;
        for (std::size_t n = pieces_of(t); n > 0; --n) own += piece_sums_[at++];
        if (!std::isfinite(own) && wrong == nullptr) wrong = &t;
        (t.rows != nullptr && t.own_rows == nullptr ? elsewhere : here) += own;
    }
    const double sum = here + (over_ranks ? over_ranks(elsewhere) : elsewhere);
    if (!std::isfinite(sum))
        return failure(errc::value, wrong != nullptr ? wrong->name : "rows of another rank",
                       "has a gradient that is not finite, or whose square is not, in step ", steps_ + 1);
    norm_ = std::sqrt(sum);
    ++steps_;
    const double clipped = options_.clip > 0 && norm_ > options_.clip ? options_.clip / norm_ : 1;
    if (options_.resting_rows_decay) {
        const auto keep = static_cast<number>(1 - rate * options_.decay);
        const std::size_t workers = std::max<std::size_t>(execute.concurrency(), 1);
        const auto work = [&](std::size_t worker) {
            for (tensor& t : tensors_)
                if (t.own_rows && t.decays) t.own_rows->scale(keep, worker, workers);
        };
        if (status s = detail::run_each_once(execute, workers, task_ref(work)); !s) return s;
    }
    return each_piece(execute, [&](tensor& t, std::size_t i, std::size_t) {
        const bool decays = t.decays && !(options_.resting_rows_decay && t.own_rows);
        in_piece(t, i, [&](const number* g, std::size_t count, const auto& numbers) {
            const learning_row<number> row = numbers();
            const std::uint64_t counted =
                row.steps == nullptr ? steps_ : static_cast<std::uint64_t>(++*row.steps);
            learn_detail::adamw_update<machine>(
                row.values, row.first_moment, row.second_moment, g, count,
                {options_, rate, clipped, decays ? options_.decay : 0, counted});
        });
    });
}

TIFFIN_END
