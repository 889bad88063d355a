// Executors that a caller might bring: each is allowed by the contract, most are unkind.
#pragma once

#include "support/random.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace tiffin_test {

// A thread for every task; says nothing of its concurrency.
struct thread_per_task {
    template <class Task>
    void operator()(std::size_t n, const Task& task) const {
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < n; ++i) threads.emplace_back([&task, i] { task(i); });
        for (std::thread& t : threads) t.join();
    }
};

// The last task first, one after the other, with room for `tasks` of them.
struct reversed {
    std::size_t tasks = 4;
    [[nodiscard]] std::size_t concurrency() const noexcept { return tasks; }
    template <class Task>
    void operator()(std::size_t n, const Task& task) const {
        for (std::size_t i = n; i-- > 0;) task(i);
    }
};

// Another order at every call.
struct shuffled {
    std::size_t tasks = 5;
    random_numbers random{1};

    [[nodiscard]] std::size_t concurrency() const noexcept { return tasks; }
    template <class Task>
    void operator()(std::size_t n, const Task& task) {
        std::vector<std::size_t> order(n);
        std::iota(order.begin(), order.end(), std::size_t{0});
        for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
        for (const std::size_t i : order) task(i);
    }
};

// Two threads for any number of tasks, the odd ones and the even ones.
struct odd_and_even {
    [[nodiscard]] static constexpr std::size_t concurrency() noexcept { return 9; }
    template <class Task>
    void operator()(std::size_t n, const Task& task) const {
        const auto run = [&](std::size_t first) {
            for (std::size_t i = first; i < n; i += 2) task(i);
        };
        std::thread odd([&] { run(1); });
        run(0);
        odd.join();
    }
};

}  // namespace tiffin_test
