#include "measuring.hpp"

#include "../disturbance.hpp"

#include <benchmark/benchmark.h>

#include <tiffin/executor/openmp.hpp>
#include <tiffin/executor/thread_team.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <initializer_list>
#include <random>
#include <vector>

namespace tiffin_bench {
namespace {

using clock = std::chrono::steady_clock;

// Around each number of tokens at which some kernel may change its ways.
constexpr std::initializer_list<std::size_t> token_counts{1,  2,  3,  4,  5,   6,   8,  12,
                                                          16, 24, 32, 64, 128, 256, 512};

// The numbers that all calls get.
struct call_inputs {
    page_floats x = random_numbers(most_tokens * most_features, 7);
    page_floats y = page_floats(most_tokens * most_features);
    std::vector<std::int32_t> ids;

    call_inputs() : ids(most_tokens) {
        std::minstd_rand engine(3);
        for (std::int32_t& id : ids) id = static_cast<std::int32_t>(engine() % vocab);
    }
    void run(subject& it, std::size_t call, std::size_t tokens, const tiffin::executor_ref& execute) {
        it.run(call % it.layers, x.data(), ids.data(), tokens, y.data(), execute);
        benchmark::ClobberMemory();
    }
    double seconds(subject& it, std::size_t call, std::size_t tokens) {
        const clock::time_point start = clock::now();
        run(it, call, tokens, tiffin::openmp{options().threads});
        return std::chrono::duration<double>(clock::now() - start).count();
    }
};
call_inputs& inputs() {
    static call_inputs only;
    return only;
}

struct quartiles {
    double low, median, high;
};
quartiles quartiles_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    return {values[n / 4], values[n / 2], values[n * 3 / 4]};
}
void tell_quartiles(benchmark::State& state, const quartiles& of, const char* name, double factor = 1) {
    state.counters[name] = factor * of.median;
    state.counters["quarter"] = factor * of.low;
    state.counters["three_quarters"] = factor * of.high;
}

// `others`: what else had of the processors' time, which report.py marks.
void tell(benchmark::State& state, const disturbance& others) {
    state.counters["others"] = others.share();
}

// Fewer make no quartiles. Google Benchmark asks for one iteration where that takes long.
constexpr std::size_t fewest_pairs = 9;

// Runs of one subject, and the time that the machine would have needed at least. The machine's limits
// are measured between the runs, as on shared machines they drift; a run is held against the mean of
// the bounds before and after it, which are the same for runs within a moment.
class run_record {
public:
    run_record(arithmetic kind, const work_per_call& work)
        : kind_(kind), work_(work), before_(bound_now()), start_(clock::now()) {}

    // Counts a run; true when the last measurement of the limits is some time ago.
    bool due() {
        ++runs_;
        return clock::now() - start_ > machine_meter::moment;
    }
    void measure_limits() {
        const std::chrono::duration<double> took = clock::now() - start_;
        const double after = bound_now();
        bound_ += static_cast<double>(runs_) * (before_ + after) / 2;
        seconds_ += took.count();
        all_runs_ += runs_;
        runs_ = 0;
        before_ = after;
        start_ = clock::now();
    }

    void report(benchmark::State& state) {
        if (runs_ > 0) measure_limits();
        const double seconds = seconds_ / static_cast<double>(all_runs_);
        state.counters["roofline"] = bound_ / seconds_;
        state.counters["GFLOPs"] = work_.flops / seconds / 1e9;
        state.counters["GBs"] = work_.bytes / seconds / 1e9;
    }

private:
    [[nodiscard]] double bound_now() const { return meter().now().bound(kind_, work_.flops, work_.bytes); }

    arithmetic kind_;
    work_per_call work_;
    double before_;
    clock::time_point start_;
    std::size_t runs_ = 0;
    std::size_t all_runs_ = 0;
    double bound_ = 0;
    double seconds_ = 0;
};

void measure(benchmark::State& state, const std::string& name, std::size_t tokens) {
    subject& it = subject_named(name);
    const subject_maker& maker = subject_makers().at(name);
    const tiffin::openmp execute{options().threads};
    it.warm_up(tokens);
    std::size_t next = 0;
    inputs().run(it, next++, tokens, execute);
    const disturbance others;
    run_record record(maker.kind, maker.work(tokens));
    for (auto _ : state) {
        inputs().run(it, next++, tokens, execute);
        if (record.due()) {
            state.PauseTiming();
            record.measure_limits();
            state.ResumeTiming();
        }
    }
    record.report(state);
    tell(state, others);
}

// What disturbs the machine disturbs both calls of a pair. The ratio is the median of those of the pairs.
void measure_ratio(benchmark::State& state, const std::string& above_name, const std::string& below_name,
                   std::size_t tokens) {
    subject& above = subject_named(above_name);
    subject& below = subject_named(below_name);
    above.warm_up(tokens);
    below.warm_up(tokens);
    std::size_t next = 0;
    inputs().seconds(above, next, tokens);
    inputs().seconds(below, next, tokens);
    std::vector<double> ratios;
    const disturbance others;
    const auto pair = [&] {
        ++next;
        // Who goes first changes, as the second finds x in the cache.
        const double first = inputs().seconds(next % 2 ? below : above, next, tokens);
        const double second = inputs().seconds(next % 2 ? above : below, next, tokens);
        ratios.push_back(next % 2 ? second / first : first / second);
    };
    for (auto _ : state) pair();
    while (ratios.size() < fewest_pairs) pair();
    tell_quartiles(state, quartiles_of(ratios), "ratio");
    tell(state, others);
}

// Up and down in turns, so that neighbours in the curve are neighbours in time, and each step is measured
// either way.
void measure_curve(benchmark::State& state, const std::string& name) {
    constexpr std::size_t most = 32;
    subject& it = subject_named(name);
    std::size_t next = 0, sweeps = 0;
    for (std::size_t n = 1; n <= most; ++n) {
        it.warm_up(n);
        inputs().seconds(it, next++, n);
    }
    std::array<std::vector<double>, most> times;
    const disturbance others;
    const auto sweep = [&] {
        const bool up = ++sweeps % 2 == 0;
        for (std::size_t i = 0; i < most; ++i) {
            const std::size_t n = up ? i : most - 1 - i;
            it.warm_up(n + 1);
            times[n].push_back(inputs().seconds(it, next++, n + 1));
        }
    };
    for (auto _ : state) sweep();
    while (sweeps < fewest_pairs) sweep();
    quartiles worst{};  // where more tokens take the least time of all
    for (std::size_t n = 0; n < most; ++n) {
        char counter[16];
        std::snprintf(counter, sizeof counter, "ms_%02zu", n + 1);
        state.counters[counter] = 1e3 * quartiles_of(times[n]).median;
        if (n + 1 == most) break;
        std::vector<double> steps;
        for (std::size_t s = 0; s < sweeps; ++s) steps.push_back(times[n + 1][s] / times[n][s]);
        const quartiles step = quartiles_of(steps);
        if (n > 0 && step.median > worst.median) continue;
        worst = step;
        state.counters["step_from"] = static_cast<double>(n + 1);
    }
    tell_quartiles(state, worst, "step");
    tell(state, others);
}

// An executor that adds up how long the slowest task of each hand-over took.
struct watched {
    const tiffin::executor_ref& execute;
    double& seconds;
    std::vector<std::chrono::duration<double>>& took;  // a task, so many as any hand-over has

    [[nodiscard]] std::size_t concurrency() const { return static_cast<std::size_t>(options().threads); }
    void operator()(std::size_t n, const tiffin::task_ref& task) const {
        const auto timed = [&](std::size_t i) {
            const auto start = clock::now();
            task(i);
            took[i] = clock::now() - start;
        };
        execute(n, tiffin::task_ref(timed));
        seconds += std::max_element(took.begin(), took.begin() + static_cast<std::ptrdiff_t>(n))->count();
    }
};

// Waking the threads, waiting for them, checks. Rounding of activations, which the calling thread does alone,
// counts too.
void measure_overhead(benchmark::State& state, const std::string& name, const tiffin::executor_ref& execute) {
    subject& it = subject_named(name);
    std::vector<double> beyond;
    std::vector<std::chrono::duration<double>> of_tasks(1024);
    const disturbance others;
    std::size_t next = 0;
    for (auto _ : state) {
        double tasks = 0;
        const watched watch{execute, tasks, of_tasks};
        const auto start = clock::now();
        inputs().run(it, next++, 1, watch);
        const std::chrono::duration<double> took = clock::now() - start;
        beyond.push_back(took.count() - tasks);
    }
    tell_quartiles(state, quartiles_of(beyond), "microseconds", 1e6);
    tell(state, others);
}

template <class Measure>
void add_benchmark(const std::string& name, const Measure& run,
                   benchmark::TimeUnit unit = benchmark::kMillisecond) {
    benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(unit);
}

}  // namespace

machine_meter& meter() {
    static machine_meter only(options().threads);
    return only;
}

void add_subject(const std::string& name, const subject_maker& maker) {
    if (!subject_makers().emplace(name, maker).second) return;
    for (const std::size_t tokens : token_counts)
        add_benchmark(name + "/tokens:" + std::to_string(tokens),
                      [=](benchmark::State& state) { measure(state, name, tokens); });
}

void add_ratios(const std::string& above, const std::string& below) {
    if (!subject_makers().contains(above) || !subject_makers().contains(below)) return;
    for (const std::size_t tokens : token_counts)
        add_benchmark("ratio/" + above + "/over/" + below + "/tokens:" + std::to_string(tokens),
                      [=](benchmark::State& state) { measure_ratio(state, above, below, tokens); });
}

void add_curve(const std::string& name) {
    if (!subject_makers().contains(name)) return;
    add_benchmark("curve/" + name, [=](benchmark::State& state) { measure_curve(state, name); });
}

void add_overhead(const std::string& name) {
    add_benchmark(
        "overhead/openmp/" + name,
        [=](benchmark::State& state) {
            const tiffin::openmp execute{options().threads};
            measure_overhead(state, name, execute);
        },
        benchmark::kMicrosecond);
    add_benchmark(
        "overhead/thread_team/" + name,
        [=](benchmark::State& state) {
            tiffin::thread_team team(static_cast<std::size_t>(options().threads));
            measure_overhead(state, name, team);
        },
        benchmark::kMicrosecond);
}

}  // namespace tiffin_bench
