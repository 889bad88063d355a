// Whether an executor ran what it was given: rows of tasks that were left out are never handed out as results.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/executor/executor.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN
namespace detail {

// Whether each of n numbered things was done once, whoever did it and in whatever order: a sum of a number for each, which
// another choice of them has by a chance of 2^-64.
class done_marks {
public:
    void add(std::size_t i) noexcept { sum_.fetch_add(mark_of(i), std::memory_order_release); }
    [[nodiscard]] bool each_once(std::size_t n) const noexcept {
        std::uint64_t all = 0;
        for (std::size_t i = 0; i < n; ++i) all += mark_of(i);
        return sum_.load(std::memory_order_acquire) == all;
    }

private:
    // The mixing of splitmix64.
    static constexpr std::uint64_t mark_of(std::uint64_t i) noexcept {
        std::uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }

    std::atomic<std::uint64_t> sum_{0};
};

// Whether `execute` ran each of n tasks once. One that does not exist is not run.
// Cost: an atomic addition a task; none where there is only one.
inline bool ran_each_once(const executor_ref& execute, std::size_t n, const task_ref& task) {
    if (n < 2) {
        execute(n, task);  // which hands a single one to nobody
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

inline status not_run_once(std::size_t n) {
    return failure(errc::executor, "executor", "did not run each of ", n, " tasks once");
}

// Runs a single hand-over's tasks. Errors: errc::executor where one of them was not run once.
inline status run_each_once(const executor_ref& execute, std::size_t n, const task_ref& task) {
    if (ran_each_once(execute, n, task)) return {};
    return not_run_once(n);
}

// An executor for the hand-overs of a call. Once the executor below has left a task out, this one runs all of that
// hand-over's tasks and of those that follow on the calling thread: nothing in the workspace is read that was not
// written. The call then fails.
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
        return not_run_once(not_run_);
    }

private:
    executor_ref below_;
    std::size_t not_run_ = 0;  // tasks of the first hand-over that failed
};

}  // namespace detail
TIFFIN_END
