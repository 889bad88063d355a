// An executor with its own threads, which spin before they sleep; not part of the umbrella.
#pragma once

#include <tiffin/executor/executor.hpp>
#include <tiffin/executor/fork_mark.hpp>
#include <tiffin/executor/relax.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

TIFFIN_BEGIN

// Runs tasks on the calling thread and on its own threads: task i on thread i mod threads. Tasks of a thread that has
// not begun them when the caller has finished its own are run by the caller: beside other processes a thread may be
// late by some milliseconds. Between calls the threads spin for `awake`, which costs a core each; then they sleep. So
// does the caller while it waits for tasks that other threads have begun: its core is then free for them.
// Calls from several threads at once, and from within a task, are run by their callers alone; so are those in
// a child of fork(), where the threads are not. Precondition: no task calls fork() to go on in the child.
// Errors: the constructor throws std::system_error where a thread cannot be started, and has ended the others.
// Cost: a hand-over of about a microsecond while awake, of some tens from sleep. On systems that do not zero
//   memory in a child (Linux does from 4.14 on), a system call to find out whether this is one.
//
//     tiffin::thread_team team(8);
//     layer(x, token_ids, y, team);
class thread_team {
public:
    explicit thread_team(std::size_t threads = std::thread::hardware_concurrency(),
                         std::chrono::microseconds awake = std::chrono::microseconds(200))
        : thread_team(alone{}, threads, awake) {
        // If a thread cannot be started, the destructor ends the others: the object is constructed by now.
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
        ends_.store(true, std::memory_order_relaxed);
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
        shares_left_.store(static_cast<std::uint32_t>(threads_), std::memory_order_relaxed);
        const std::uint32_t call = announce();
        run_share(0, call);
        for (int i = 0; i < a_moment && shares_left_.load(std::memory_order_acquire) != 0; ++i)
            detail::relax();
        for (std::size_t i = 1; i < threads_ && shares_left_.load(std::memory_order_acquire) != 0; ++i)
            run_share(i, call);
        wait(shares_left_, caller_sleeps_, [](std::uint32_t left) { return left == 0; });
        taken_.clear(std::memory_order_release);
    }

private:
    struct alone {};
    thread_team(alone, std::size_t threads, std::chrono::microseconds awake)
        : threads_(threads > 0 ? threads : 1), awake_(awake), shares_(std::make_unique<share[]>(threads_)) {}

    // A thread's share of the tasks: the last call in which a thread began it.
    struct alignas(64) share {
        std::atomic<std::uint32_t> begun_in{0};
    };
    // Polls of a word: about a microsecond.
    static constexpr int a_moment = 64;

    // Returns the call's number. Sequentially consistent, as are the sleeper counts and the sleepers' loads of the
    // word that they wait for: either a thread about to sleep is counted here, or it reads the new call.
    std::uint32_t announce() noexcept {
        const std::uint32_t call = call_.fetch_add(1) + 1;
        if (sleepers_.load() != 0) call_.notify_all();
        return call;
    }
    // Runs share i unless a thread has begun it. A call ends when all its shares have been run: a thread that
    // advances a share from the last call to this one is within this call and reads its tasks, however late.
    void run_share(std::size_t i, std::uint32_t call) noexcept {
        std::uint32_t last = call - 1;
        if (!shares_[i].begun_in.compare_exchange_strong(last, call, std::memory_order_acq_rel)) return;
        for (std::size_t t = i; t < tasks_; t += threads_) (*task_)(t);
        if (shares_left_.fetch_sub(1) == 1 && caller_sleeps_.load() != 0) shares_left_.notify_one();
    }
    // Waits until over(word): spins, then sleeps.
    template <class Over>
    void wait(const std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& sleepers,
              const Over& over) noexcept {
        using clock = std::chrono::steady_clock;
        if (over(word.load(std::memory_order_acquire))) return;
        const clock::time_point start = clock::now();
        do
            for (int i = 0; i < a_moment; ++i) {
                if (over(word.load(std::memory_order_acquire))) return;
                detail::relax();
            }
        while (clock::now() - start < awake_);
        sleepers.fetch_add(1);
        for (std::uint32_t value = word.load(); !over(value); value = word.load()) word.wait(value);
        sleepers.fetch_sub(1);
    }
    void serve(std::size_t me) noexcept {
        for (std::uint32_t seen = 0;;) {
            wait(call_, sleepers_, [seen](std::uint32_t call) { return call != seen; });
            seen = call_.load(std::memory_order_acquire);
            if (ends_.load(std::memory_order_relaxed)) return;
            run_share(me, seen);
        }
    }

    std::size_t threads_;
    std::chrono::microseconds awake_;
    std::unique_ptr<share[]> shares_;
    std::vector<std::thread> others_;
    detail::fork_mark threads_here_;
    // Read by all threads; on another cache line than what they write.
    alignas(64) std::atomic<std::uint32_t> call_{0};
    std::atomic<std::uint32_t> sleepers_{0};
    const task_ref* task_ = nullptr;
    std::size_t tasks_ = 0;
    std::atomic<bool> ends_{false};
    alignas(64) std::atomic<std::uint32_t> shares_left_{0}, caller_sleeps_{0};
    std::atomic_flag taken_;
};

TIFFIN_END
