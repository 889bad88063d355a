// The executor of the caller's threads: every task once, whoever comes late, and the same numbers as on one thread.
#include <tiffin/executor/thread_gang.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

namespace executor_thread_gang_test {
using namespace tiffin;
using namespace std::chrono_literals;

namespace {

// Runs what(me) on `threads` threads, the caller being number 0.
template <class What>
void on_all(std::size_t threads, const What& what) {
    std::vector<std::thread> others;
    for (std::size_t me = 1; me < threads; ++me) others.emplace_back([&, me] { what(me); });
    what(0);
    for (std::thread& t : others) t.join();
}

}  // namespace

TEST_CASE("thread_gang: every task once, in many calls and many entries") {
    for (const std::size_t threads : {1u, 2u, 3u, 5u}) {
        thread_gang gang(threads);
        CHECK(gang.concurrency() == threads);
        std::size_t wrong = 0, led = 0;
        on_all(threads, [&](std::size_t me) {
            for (int entry = 0; entry < 40; ++entry) {
                // Some come late.
                if ((me + static_cast<std::size_t>(entry)) % 13 == 5) std::this_thread::sleep_for(100us);
                gang.enter(me, [&] {
                    ++led;
                    for (std::size_t tasks = 0; tasks < 12; ++tasks) {
                        std::vector<std::atomic<int>> runs(tasks);
                        const auto task = [&](std::size_t i) { runs[i].fetch_add(1); };
                        gang(tasks, task_ref(task));
                        for (const std::atomic<int>& count : runs) wrong += count != 1;
                    }
                });
            }
        });
        CHECK(led == 40);
        CHECK(wrong == 0);
    }
}

TEST_CASE("thread_gang: its threads work at the same time") {
    thread_gang gang(3);
    std::atomic<int> here{0};
    // Ends only if all three are on their way at once.
    const auto meet = [&](std::size_t) {
        here.fetch_add(1);
        while (here.load() < 3) std::this_thread::yield();
    };
    on_all(3, [&](std::size_t me) { gang.enter(me, [&] { gang(3, task_ref(meet)); }); });
    CHECK(here == 3);
}

TEST_CASE("thread_gang: calls outside of an entry and from within a task are run by their callers") {
    thread_gang gang(2);
    std::atomic<int> runs{0};
    const auto count = [&](std::size_t) { runs.fetch_add(1); };
    gang(7, task_ref(count));
    CHECK(runs == 7);
    const auto nested = [&](std::size_t) { gang(5, task_ref(count)); };
    on_all(2, [&](std::size_t me) { gang.enter(me, [&] { gang(4, task_ref(nested)); }); });
    CHECK(runs == 27);
    gang(3, task_ref(count));
    CHECK(runs == 30);
}

TEST_CASE("thread_gang: what the leader throws passes, and the others are let go") {
    thread_gang gang(3);
    std::atomic<int> runs{0};
    const auto count = [&](std::size_t) { runs.fetch_add(1); };
    on_all(3, [&](std::size_t me) {
        if (me == 0)
            CHECK_THROWS_AS(gang.enter(0, [&] { throw std::runtime_error("lead"); }), std::runtime_error);
        else
            gang.enter(me, [] {});
        gang.enter(me, [&] { gang(9, task_ref(count)); });
    });
    CHECK(runs == 9);
}

TEST_CASE("thread_gang: a layer gives the bits that it gives on one thread") {
    const auto tensors = tiffin_test::tensor_set::of(
        swiglu{}, {.sizes = {.d_model = 96, .d_ff = 417}, .dense = {}, .tables = {}});
    auto layer = try_prepare<swiglu>(tensors.given(), simd{});
    REQUIRE(layer.ok());
    for (const std::size_t tokens : {1u, 6u}) {
        const std::vector<float> x = tiffin_test::random_rows(tokens, 96, 3);
        std::vector<float> alone(x.size()), together(x.size());
        REQUIRE(layer->try_call(x, token_inputs{}, alone).ok());
        thread_gang gang(3);
        bool ok = false;
        on_all(3, [&](std::size_t me) {
            gang.enter(me, [&] { ok = layer->try_call(x, token_inputs{}, together, gang).ok(); });
        });
        CHECK(ok);
        CHECK(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)) == 0);
    }
}

}  // namespace executor_thread_gang_test
