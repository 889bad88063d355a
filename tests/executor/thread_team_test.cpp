// The executor of its own threads: every task once, whoever calls, and the same numbers as on one thread.
#include <tiffin/executor/thread_team.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/hardware_threads.hpp>
#include <tiffin/layers.hpp>

#include "executor/in_child.hpp"
#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <ctime>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include <pthread.h>
#include <unistd.h>

namespace executor_thread_team_test {
using namespace tiffin;
using namespace std::chrono_literals;

namespace {

// Runs `tasks` tasks and tells whether each ran once.
bool runs_each_once(thread_team& team, std::size_t tasks) {
    std::vector<std::atomic<int>> runs(tasks);
    const auto task = [&](std::size_t i) { runs[i].fetch_add(1); };
    team(tasks, task_ref(task));
    for (const std::atomic<int>& count : runs)
        if (count != 1) return false;
    return true;
}

}  // namespace

TEST_CASE("hardware_threads: those that the standard library counts") {
    CHECK(tiffin::detail::hardware_threads() == std::thread::hardware_concurrency());
}
TEST_CASE("thread_team: every task once, for any number of tasks and threads") {
    for (const std::size_t threads : {0u, 1u, 2u, 3u, 5u}) {
        thread_team team(threads);
        CHECK(team.concurrency() == (threads > 0 ? threads : 1));
        std::size_t wrong = 0;
        for (std::size_t tasks = 0; tasks < 300; ++tasks) wrong += !runs_each_once(team, tasks % 23);
        CHECK(wrong == 0);
    }
}

TEST_CASE("thread_team: tasks run at the same time") {
    thread_team team(3);
    std::atomic<int> here{0};
    // Ends only if all three are on their way at once.
    const auto meet = [&](std::size_t) {
        here.fetch_add(1);
        while (here.load() < 3) std::this_thread::yield();
    };
    team(3, task_ref(meet));
    CHECK(here == 3);
}

TEST_CASE("thread_team: threads that sleep are woken") {
    thread_team at_once(3, 0us), soon(3, 50us);
    std::size_t wrong = 0;
    for (int i = 0; i < 200; ++i) {
        wrong += !runs_each_once(at_once, 7);
        wrong += !runs_each_once(soon, 7);
        if (i % 10 == 0) std::this_thread::sleep_for(1ms);
    }
    CHECK(wrong == 0);
}

TEST_CASE("thread_team: what a late thread has not begun is run by the caller" NOT_UNDER_TSAN) {
    CHECK(tiffin_test::holds_in_child([] {
        static std::atomic<bool> held{false}, go_on{false};
        std::signal(SIGUSR1, [](int) {
            held = true;
            while (!go_on) ::usleep(100);
        });
        thread_team team(2, 0us);
        pthread_t other{};
        std::atomic<int> here{0};
        const auto meet = [&](std::size_t i) {
            if (i == 1) other = ::pthread_self();
            here.fetch_add(1);
            while (here.load() < 2) std::this_thread::yield();
        };
        team(2, task_ref(meet));  // a task on each thread: neither ends alone
        ::pthread_kill(other, SIGUSR1);
        while (!held) std::this_thread::yield();
        bool once = true;
        for (std::size_t tasks = 0; tasks < 9; ++tasks) once = once && runs_each_once(team, tasks);
        go_on = true;
        for (std::size_t tasks = 0; tasks < 9; ++tasks) once = once && runs_each_once(team, tasks);
        return once;
    }));
}

TEST_CASE("thread_team: a caller that waits for long sleeps") {
    const auto used = [] {
        std::timespec t{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
    };
    thread_team team(2);
    std::atomic<bool> begun{false};
    const auto task = [&](std::size_t i) {
        begun = begun || i == 1;
        while (!begun) std::this_thread::sleep_for(100us);
        if (i == 1) std::this_thread::sleep_for(500ms);
    };
    const auto before = used();
    team(2, task_ref(task));
    // It may watch for 200 us; it would watch for all of the time.
    CHECK(used() - before < 20ms);
}

// Would hang.
TEST_CASE("thread_team: ends while its threads watch, and while they sleep") {
    for (int i = 0; i < 20; ++i) thread_team team(3, i % 2 ? 0us : 10ms);
    thread_team asleep(3, 0us);
    std::this_thread::sleep_for(2ms);
}

TEST_CASE("thread_team: calls from several threads and from within a task") {
    thread_team team(3);
    std::atomic<std::size_t> wrong{0};
    std::vector<std::thread> callers;
    for (int c = 0; c < 3; ++c)
        callers.emplace_back([&] {
            for (int i = 0; i < 200; ++i) wrong += !runs_each_once(team, 11);
        });
    for (std::thread& caller : callers) caller.join();
    const auto nested = [&](std::size_t) { wrong += !runs_each_once(team, 5); };
    team(4, task_ref(nested));
    CHECK(wrong == 0);
}

// Each thread maps 8 MiB: of 64 some are to be had, and their memory again once they have ended.
TEST_CASE("thread_team: says where a thread cannot be had, and ends the others" NOT_UNDER_SANITIZERS) {
    CHECK(tiffin_test::holds_in_child([] {
        if (!tiffin_test::limit_memory(std::size_t{100} << 20)) return false;
        for (const auto awake : {0us, 200us}) {
            try {
                thread_team many(64, awake);
                return false;
            } catch (const std::system_error&) {
            }
            thread_team few(4, awake);
            if (!runs_each_once(few, 9)) return false;
        }
        return true;
    }));
}

TEST_CASE("thread_team: in a child of fork() the caller runs all tasks alone" NOT_UNDER_TSAN) {
    for (const auto awake : {0us, 10000us}) {  // threads that sleep, and threads that watch
        auto team = std::make_unique<thread_team>(3, awake);
        CHECK(runs_each_once(*team, 7));
        std::this_thread::sleep_for(2ms);
        CHECK(tiffin_test::holds_in_child([&] {
            const std::thread::id caller = std::this_thread::get_id();
            bool alone = true;
            const auto task = [&](std::size_t) { alone = alone && std::this_thread::get_id() == caller; };
            (*team)(7, task_ref(task));
            return alone && runs_each_once(*team, 7);
        }));
        // A thread of the child may get the handle of one that is not there.
        CHECK(tiffin_test::holds_in_child([&] {
            thread_team own(3, awake);
            team.reset();
            return runs_each_once(own, 7) &&
                   tiffin_test::holds_in_child([&] { return runs_each_once(own, 7); });
        }));
        CHECK(runs_each_once(*team, 7));
    }
}

TEST_CASE("thread_team: in a child of fork() that came while another thread called" NOT_UNDER_TSAN) {
    auto team = std::make_unique<thread_team>(3);
    std::atomic<bool> here{false}, leave{false};
    std::thread caller([&] {
        const auto task = [&](std::size_t) {
            here = true;
            while (!leave) std::this_thread::yield();
        };
        (*team)(3, task_ref(task));
    });
    while (!here) std::this_thread::yield();
    CHECK(tiffin_test::holds_in_child([&] {
        const bool ran = runs_each_once(*team, 7);
        team.reset();
        return ran;
    }));
    leave = true;
    caller.join();
}

TEST_CASE("thread_team: a layer's output is that of one thread, to the bit") {
    constexpr tiffin_test::sizes sizes{.d_model = 96, .d_ff = 250, .vocab = 37};
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(stem{}), {sizes, {}, {}, ~0u, 29});
    auto layer = prepare<stem>(tensors.given(), simd{}, {.workers = 4});
    thread_team team(4);
    for (const std::size_t tokens : {std::size_t{1}, std::size_t{2}, std::size_t{33}}) {
        const std::vector<float> x = tiffin_test::random_rows(tokens, sizes.d_model, 31);
        const std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, 37, 37);
        std::vector<float> alone(x.size()), y(x.size());
        layer(x, ids, alone, serial{});
        layer(x, ids, y, team);
        CHECK(y == alone);
    }
}

}  // namespace executor_thread_team_test
