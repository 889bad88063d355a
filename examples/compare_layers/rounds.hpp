// Times layers in turn, round by round, each out of memory and not out of a cache.
#pragma once

#include "../support/machine.hpp"
#include "contender.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

using steady = std::chrono::steady_clock;
inline double seconds_since(steady::time_point start) {
    return std::chrono::duration<double>(steady::now() - start).count();
}

// Memory that is read to have other memory out of the caches.
class cache_sweep {
public:
    explicit cache_sweep(double bytes) : memory_(static_cast<std::size_t>(bytes / line), numbers{1}) {}
    void operator()(const tiffin::executor_ref& execute) {
        if (memory_.empty()) return;
        const std::size_t parts = std::max<std::size_t>(execute.concurrency(), 1);
        std::vector<std::uint64_t> sums(parts);
        const auto part = [&](std::size_t p) {
            std::uint64_t sum = 0;
            for (std::size_t i = memory_.size() * p / parts; i < memory_.size() * (p + 1) / parts; ++i)
                sum += memory_[i].first;
            sums[p] = sum;
        };
        execute(parts, tiffin::task_ref(part));
        for (const std::uint64_t sum : sums) seen_ = seen_ + sum;
    }

private:
    static constexpr double line = 64;
    struct alignas(64) numbers {
        std::uint64_t first;
    };
    std::vector<numbers> memory_;
    volatile std::uint64_t seen_ = 0;  // or nobody would read the memory
};

// The times of each layer of a group, of one way to call it.
struct round_times {
    std::vector<std::vector<double>> per_token;  // of each layer, in each round
    bool busy = false;
};

// A quartile (0.25, 0.75), or the median.
inline double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    const double at = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const double next = values[std::min(below + 1, values.size() - 1)];
    return values[below] + (at - static_cast<double>(below)) * (next - values[below]);
}

// Calls of `step` tokens of the text, by all layers in turn: a machine that slows down for a while slows them all.
// So many rounds as take `seconds`, and `fewest`.
inline round_times time_rounds(const job& j, const std::vector<contender*>& group, std::size_t step,
                               std::size_t fewest, double seconds, cache_sweep& sweep,
                               const std::function<void(double seconds)>& progress) {
    round_times made{.per_token = std::vector<std::vector<double>>(group.size())};
    const std::size_t count = std::min(step, j.ids.size()), places = j.ids.size() / count;
    const machine_load load(j.execute.concurrency());
    const auto start = steady::now();
    double told = -1;
    for (std::size_t round = 0; round < fewest || seconds_since(start) < seconds; ++round) {
        sweep(j.execute);
        for (std::size_t i = 0; i < group.size(); ++i) {
            // Not before each call: a terminal may take longer than the threads watch for the next.
            if (const double now = seconds_since(start); now - told > 0.1) progress(told = now);
            const auto before = steady::now();
            group[i]->call(round % places * count, count);
            made.per_token[i].push_back(seconds_since(before) / static_cast<double>(count));
        }
    }
    made.busy = load.now().busy();
    return made;
}

inline rates rates_of(const std::vector<double>& of, const std::vector<double>& first, bool busy) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < of.size(); ++i) ratios.push_back(first[i] / of[i]);
    return {.per_second = 1 / quantile(of, 0.5),
            .low = quantile(ratios, 0.25),
            .ratio = quantile(ratios, 0.5),
            .high = quantile(ratios, 0.75),
            .busy = busy};
}
