// An executor of its own threads, which hand over without sleeping; not part of the umbrella.
#pragma once

#include <tiffin/executor/executor.hpp>
#include <tiffin/executor/fork_mark.hpp>
#include <tiffin/executor/relax.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

TIFFIN_BEGIN

// Runs tasks on the calling thread and on threads that it keeps: task i on thread i mod threads.
// Between calls the threads watch for the next one for `awake`, which costs a core each; then they sleep.
// Calls from several threads at once, and from within a task, are run by their callers alone; so are those in
// a child of fork(), where the threads are not. Precondition: no task calls fork() to go on in the child.
// Errors: the constructor throws std::system_error where a thread cannot be had, and has ended the others.
// Cost: a hand-over of about a microsecond while awake, of some tens from sleep. On systems that do not wipe
//   memory in a child (Linux does from 4.14 on), a system call to find out whether this is one.
//
//     tiffin::thread_team team(8);
//     layer(x, token_ids, y, team);
class thread_team {
public:
    explicit thread_team(std::size_t threads = std::thread::hardware_concurrency(),
                         std::chrono::microseconds awake = std::chrono::microseconds(200))
        : thread_team(alone{}, threads, awake) {
        // Where a thread cannot be had, the destructor ends those that could: the object is made by now.
        others_.reserve(threads_ - 1);
        for (std::size_t i = 1; i < threads_; ++i) others_.emplace_back([this, i] { serve(i); });
    }
    thread_team(const thread_team&) = delete;
    thread_team& operator=(const thread_team&) = delete;
    ~thread_team() {
        if (!threads_here_.here()) {
            for (std::thread& other : others_) detail::renew(other);
            return;
        }
        task_ = nullptr;
        announce();
        for (std::thread& other : others_) other.join();
    }

    [[nodiscard]] std::size_t concurrency() const noexcept { return threads_; }

    void operator()(std::size_t n, const task_ref& task) noexcept {
        if (threads_ == 1 || n < 2 || !threads_here_.here() ||
            taken_.test_and_set(std::memory_order_acquire)) {
            for (std::size_t i = 0; i < n; ++i) task(i);
            return;
        }
        task_ = &task;
        tasks_ = n;
        at_work_.store(threads_ - 1, std::memory_order_relaxed);
        announce();
        run_share(0);
        while (at_work_.load(std::memory_order_acquire) != 0) detail::relax();
        taken_.clear(std::memory_order_release);
    }

private:
    struct alone {};
    thread_team(alone, std::size_t threads, std::chrono::microseconds awake)
        : threads_(threads > 0 ? threads : 1), awake_(awake) {}

    // Sequentially consistent, as are the sleepers' count and their look at `call_`: either a thread about
    // to sleep is seen here, or it sees the call.
    void announce() noexcept {
        call_.fetch_add(1);
        if (sleepers_.load() != 0) call_.notify_all();
    }
    void run_share(std::size_t me) const noexcept {
        for (std::size_t i = me; i < tasks_; i += threads_) (*task_)(i);
    }
    // Waits until the number of calls is no longer `seen`.
    void wait(std::uint32_t seen) noexcept {
        using clock = std::chrono::steady_clock;
        const clock::time_point start = clock::now();
        do
            for (int i = 0; i < 64; ++i) {
                if (call_.load(std::memory_order_acquire) != seen) return;
                detail::relax();
            }
        while (clock::now() - start < awake_);
        sleepers_.fetch_add(1);
        call_.wait(seen);
        sleepers_.fetch_sub(1);
    }
    void serve(std::size_t me) noexcept {
        for (std::uint32_t seen = 0;; ++seen) {
            wait(seen);
            if (task_ == nullptr) return;
            run_share(me);
            at_work_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::size_t threads_;
    std::chrono::microseconds awake_;
    std::vector<std::thread> others_;
    detail::fork_mark threads_here_;
    // What all threads look at, apart from what they write.
    alignas(64) std::atomic<std::uint32_t> call_{0};
    std::atomic<std::uint32_t> sleepers_{0};
    const task_ref* task_ = nullptr;
    std::size_t tasks_ = 0;
    alignas(64) std::atomic<std::size_t> at_work_{0};
    std::atomic_flag taken_;
};

TIFFIN_END
