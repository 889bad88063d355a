// Checks that an executor ran every task once: rows of skipped tasks are never returned as results.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/executor/executor.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN
namespace detail {

// Whether each of n indices was added once, by any thread and in any order: a sum of one 64-bit hash per index, which
// a wrong set of indices matches with a probability of 2^-64.
class done_marks {
public:
    void add(std::size_t i) noexcept { sum_.fetch_add(mark_of(i), std::memory_order_release); }
    [[nodiscard]] bool each_once(std::size_t n) const noexcept {
        std::uint64_t all = 0;
        for (std::size_t i = 0; i < n; ++i) all += mark_of(i);
        return sum_.load(std::memory_order_acquire) == all;
    }

private:
    // The mixing function of splitmix64.
    static constexpr std::uint64_t mark_of(std::uint64_t i) noexcept {
        std::uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }

    std::atomic<std::uint64_t> sum_{0};
};

// Runs n tasks and returns whether `execute` ran each of them once. Indices from n on are not run.
// Cost: an atomic addition per task; none for a single task.
inline bool ran_each_once(const executor_ref& execute, std::size_t n, const task_ref& task) {
    if (n < 2) {
        execute(n, task);  // runs a single task on this thread
        return true;
    }
    done_marks ran;
    const auto marked = [&](std::size_t i) noexcept {
        if (i < n) task(i);
        ran.add(i);
    };
    execute(n, task_ref(marked));
    return ran.each_once(n);
}

inline status tasks_not_run_error(std::size_t n) {
    return failure(errc::executor, "executor", "did not run each of ", n, " tasks once");
}

// Runs n tasks in one hand-over. Errors: errc::executor where one of them was not run once.
inline status run_each_once(const executor_ref& execute, std::size_t n, const task_ref& task) {
    if (ran_each_once(execute, n, task)) return {};
    return tasks_not_run_error(n);
}

// An executor for the hand-overs of a call. Once the executor below has skipped a task, this one runs all tasks of
// that hand-over and of the later ones on the calling thread: nothing in the workspace is read before it is written.
// The call then fails.
class checked_executor {
public:
    explicit checked_executor(const executor_ref& below) noexcept : below_(below) {}
    [[nodiscard]] std::size_t concurrency() const noexcept { return below_.concurrency(); }
    void operator()(std::size_t n, const task_ref& task) {
        if (not_run_ == 0 && ran_each_once(below_, n, task)) return;
        if (not_run_ == 0) not_run_ = n;
        serially(n, task);
    }
    // Errors: errc::executor.
    [[nodiscard]] status done() const {
        if (not_run_ == 0) return {};
        return tasks_not_run_error(not_run_);
    }

private:
    executor_ref below_;
    std::size_t not_run_ = 0;  // tasks of the first hand-over that failed
};

}  // namespace detail
TIFFIN_END
