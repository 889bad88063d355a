// An executor of the caller's own threads, which enter a call together; not part of the umbrella.
#pragma once

#include <tiffin/executor/executor.hpp>
#include <tiffin/executor/relax.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

TIFFIN_BEGIN

// Runs tasks on an engine's existing threads, so that no second pool of threads spins beside them: each thread
// enters, thread 0 leads and calls layers with the gang as their executor, the others run its tasks until the leader
// is done. Task i runs on thread i mod threads.
// Calls from within a task, and from threads that do not lead, are run by their callers alone.
// Precondition: all threads enter, each under its own index, as often as thread 0 does; they may come late.
// Errors: what the leader throws passes to the leader's caller, once the others have left.
// Cost: a hand-over of about a microsecond per call of the executor, and one at the end. Waiting threads spin on
//   memory, as those of an engine between two operators do.
//
//     tiffin::thread_gang gang(threads);
//     // on each thread of the engine:
//     gang.enter(me, [&] { layer(x, token_ids, y, workspace, gang); });
class thread_gang {
public:
    explicit thread_gang(std::size_t threads)
        : threads_(threads > 0 ? threads : 1), seen_(std::make_unique<seen_call[]>(threads_)) {}
    thread_gang(const thread_gang&) = delete;
    thread_gang& operator=(const thread_gang&) = delete;

    [[nodiscard]] std::size_t concurrency() const noexcept { return threads_; }

    // Thread `me` of 0 .. threads - 1. Thread 0 runs lead() and returns when all threads have left.
    template <class Lead>
    void enter(std::size_t me, const Lead& lead) {
        if (me != 0) {
            serve(me);
            return;
        }
        const struct dismissal {
            thread_gang& gang;
            ~dismissal() { gang.dismiss(); }
        } at_the_end{*this};
        leading_.clear(std::memory_order_release);
        lead();
    }

    void operator()(std::size_t n, const task_ref& task) noexcept {
        if (threads_ == 1 || n < 2 || leading_.test_and_set(std::memory_order_acquire)) {
            for (std::size_t i = 0; i < n; ++i) task(i);
            return;
        }
        announce(&task, n);
        run_share(0);
        wait_for_all();
        leading_.clear(std::memory_order_release);
    }

private:
    void announce(const task_ref* task, std::size_t n) noexcept {
        task_ = task;
        tasks_ = n;
        at_work_.store(threads_ - 1, std::memory_order_relaxed);
        call_.fetch_add(1, std::memory_order_release);
    }
    void wait_for_all() const noexcept {
        while (at_work_.load(std::memory_order_acquire) != 0) detail::relax();
    }
    // Until the next enter() no thread leads: the flag stays set.
    void dismiss() noexcept {
        leading_.test_and_set(std::memory_order_acquire);
        announce(nullptr, 0);
        wait_for_all();
    }
    void run_share(std::size_t me) const noexcept {
        for (std::size_t i = me; i < tasks_; i += threads_) (*task_)(i);
    }
    void serve(std::size_t me) noexcept {
        // No thread can miss a call: each call waits for all threads.
        for (std::uint32_t& seen = seen_[me].count;;) {
            while (call_.load(std::memory_order_acquire) == seen) detail::relax();
            ++seen;
            const bool ends = task_ == nullptr;
            if (!ends) run_share(me);
            at_work_.fetch_sub(1, std::memory_order_release);
            if (ends) return;
        }
    }

    struct alignas(64) seen_call {
        std::uint32_t count = 0;
    };
    std::size_t threads_;
    std::unique_ptr<seen_call[]> seen_;
    alignas(64) std::atomic<std::uint32_t> call_{0};
    const task_ref* task_ = nullptr;
    std::size_t tasks_ = 0;
    alignas(64) std::atomic<std::size_t> at_work_{0};
    std::atomic_flag leading_{true};
};

TIFFIN_END
