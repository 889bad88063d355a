// Executors that do not keep their word: one that leaves a task out, or runs one in place of another, is an error of the
// call, of the preparation, of the step; no memory is read that no task has written, and the next call is right.
#include <tiffin/executor/checked_executor.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/call/short_convolution.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/fold.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/learn/adamw.hpp>
#include <tiffin/learn/cross_entropy.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/table/row_file.hpp>
#include <tiffin/train/reference.hpp>

#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace executor_checked_executor_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t d = 32, f = 416, vocab = 23, tokens = 9;

struct two_of_keys : product_key_memory {
    constexpr two_of_keys() { router.top_k = 2; }
};
using memory_plus_of_two = ffn<gate<silu>, two_of_keys>;

enum class fault { none_run, first_left, last_left, one_for_another, one_twice, all_twice, one_more };
constexpr fault faults[] = {fault::none_run,  fault::first_left, fault::last_left, fault::one_for_another,
                            fault::one_twice, fault::all_twice,  fault::one_more};

// Keeps its word in the first `good` hand-overs.
struct faulty {
    fault how;
    std::size_t good = 0;
    std::size_t handed = 0;  // hand-overs that it was given

    [[nodiscard]] static constexpr std::size_t concurrency() noexcept { return 4; }
    template <class Task>
    void operator()(std::size_t n, const Task& task) {
        if (handed++ < good) return serially(n, task);
        if (how == fault::none_run) return;
        for (std::size_t i = how == fault::first_left ? 1 : 0; i < n; ++i) {
            if (how == fault::last_left && i + 1 == n) break;
            task(how == fault::one_for_another && i == 1 ? 0 : i);
            if (how == fault::all_twice) task(i);
        }
        if (how == fault::one_twice) task(n - 1);
        if (how == fault::one_more) task(n);
    }
};

void refused(const status& s) {
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().code == errc::executor);
    CHECK(s.failure().where == "executor");
    CHECK(s.failure().what.find("tasks once") != std::string::npos);
}

// Throws in place of the last hand-over.
struct throwing {
    std::size_t good;

    [[nodiscard]] static constexpr std::size_t concurrency() noexcept { return 4; }
    template <class Task>
    void operator()(std::size_t n, const Task& task) {
        if (good-- == 0) throw n;
        serially(n, task);
    }
};

// Every hand-over of a call and of a preparation, by every fault.
template <class Block, class Backend>
void check(const Backend& backend, bool prepares_in_tasks) {
    const tensor_set all = tensor_set::of(Block{}, {{d, f, vocab}, {}, {}, ~0u, 3});
    const std::vector<float> x = random_rows(tokens, d, 1), residual = random_rows(tokens, d, 2);
    const std::vector<std::int32_t> ids = random_ids(tokens, vocab, 4);
    const token_inputs inputs{.token_ids = ids, .residual = {residual.data(), tokens, d}};
    const auto layer = prepare<Block>(all.given(), backend, {.tokens = 0});
    workspace memory = layer.make_workspace(tokens, 4);
    const std::span<std::byte> bytes = memory;
    std::vector<float> y(tokens * d), right(tokens * d);
    faulty counts{fault::none_run, ~std::size_t{0}};
    REQUIRE(layer.try_call(x, inputs, right, bytes, counts).ok());
    REQUIRE(counts.handed > 0);
    for (const fault how : faults)
        for (std::size_t good = 0; good < counts.handed; ++good) {
            std::memset(bytes.data(), 0x7F, bytes.size());  // a choice read of this is no expert
            faulty wrong{how, good};
            refused(layer.try_call(x, inputs, y, bytes, wrong));
            CHECK(wrong.handed == good + 1);  // it is not asked again
            REQUIRE(layer.try_call(x, inputs, y, bytes, tiffin_test::shuffled{4}).ok());
            CHECK(y == right);
        }
    for (std::size_t good = 0; good < counts.handed; ++good)
        CHECK_THROWS_AS(static_cast<void>(layer.try_call(x, inputs, y, bytes, throwing{good})), std::size_t);
    faulty prepares{fault::none_run, ~std::size_t{0}};
    REQUIRE(try_prepare<Block>(all.given(), backend, {.execute = prepares}).ok());
    REQUIRE((prepares.handed > 0) == prepares_in_tasks);
    for (const fault how : faults)
        for (std::size_t good = 0; good < prepares.handed; ++good) {
            faulty wrong{how, good};
            const auto made = try_prepare<Block>(all.given(), backend, {.execute = wrong});
            REQUIRE_FALSE(made.ok());
            refused(made.failure());
        }
}

}  // namespace

TEST_CASE_TEMPLATE("checked_executor: calls and preparations", Block, stem_hybrid, structmoe, moe<stem>,
                   tiffin_test::mort_of_three<mlp>, memory_plus_of_two) {
    check<Block>(reference<>{}, false);
    check<Block>(simd<>{}, true);
    check<Block>(simd<q8_0>{}, true);
}
TEST_CASE("checked_executor: eigen") {
    check<stem_hybrid>(eigen{}, false);
}

TEST_CASE("checked_executor: a single task is not handed over") {
    std::size_t ran = 0;
    const auto task = [&](std::size_t) { ++ran; };
    detail::checked_executor one(faulty{fault::none_run});
    one(1, task_ref(task));
    one(0, task_ref(task));
    CHECK(one.done().ok());
    CHECK(ran == 1);
}

TEST_CASE("checked_executor: forward, backward and a step") {
    const tensor_set all = tensor_set::of(stem{}, {{d, 40, vocab}, {}, {}, ~0u, 3});
    std::vector<double> x(tokens * d, 0.25), dy(tokens * d, 0.5), y(tokens * d);
    const std::vector<std::int32_t> ids = random_ids(tokens, vocab, 4);
    for (const fault how : faults) {
        auto layer = prepare_training<stem>(all.given(), reference<>{}, {.tokens = tokens, .workers = 4});
        faulty wrong{how};
        refused(layer.try_forward(x, {.token_ids = ids}, y, wrong));
        const status backward = layer.try_backward(dy);
        REQUIRE_FALSE(backward.ok());  // it would be that of rows which are not there
        CHECK(backward.failure().code == errc::empty);
        REQUIRE(layer.try_forward(x, {.token_ids = ids}, y).ok());
        refused(layer.try_backward(dy, {}, wrong));
        // The last hand-over of either.
        faulty counts{how, ~std::size_t{0}};
        REQUIRE(layer.try_forward(x, {.token_ids = ids}, y, counts).ok());
        faulty last{how, counts.handed - 1};
        refused(layer.try_forward(x, {.token_ids = ids}, y, last));

        std::vector<double> values(4000, 1.0), gradient(4000, 0.5);
        adamw<reference<>> optimizer;
        optimizer.add("w", values.data(), gradient.data(), {4000}, false);
        faulty at_once{how};
        refused(optimizer.step(0.1, at_once));
        CHECK(values == std::vector<double>(4000, 1.0));
        CHECK(optimizer.steps() == 0);
        bool told = false;
        refused(optimizer.step(0.1, at_once, [&](double sum) { return told = true, sum; }));
        CHECK(told);  // the other ranks do not wait for ever
        faulty later{how, 1};
        refused(optimizer.step(0.1, later));

        std::vector<double> logits(40 * 7, 0.5), losses(40);
        const std::vector<std::int32_t> targets(40, 3);
        faulty of_losses{how};
        refused(
            softmax_cross_entropy(reference<>{}, {logits.data(), 40, 7}, targets, 1.0, losses, of_losses));
    }
}

TEST_CASE("checked_executor: what is computed beside layers, and rows of files") {
    const std::vector<float> conv = random_rows(1, d * 4, 1), norm = random_rows(1, d, 2),
                             v = random_rows(8, d, 3);
    weights given;
    given.add("conv.weight", conv.data(), {d, 4}).add("conv_norm.weight", norm.data(), {d});
    const auto convolution = short_convolution::prepare(given, 1).or_throw();
    const tensor_set ple = tensor_set::of(ple_full{}, {{d, f, vocab * 9}, {}, {}, 0u, 3});
    for (const fault how : faults) {
        std::vector<row_history> past;
        for (int i = 0; i < 4; ++i) past.push_back(convolution.make_history());
        std::vector<float> y(8 * d);
        const std::vector<std::uint32_t> sequences{0, 1, 2, 3, 0, 1, 2, 3};
        faulty wrong{how};
        refused(convolution({v.data(), 8, d}, sequences, past, {y.data(), 8, d}, wrong));

        std::vector<int> done(64, 0);
        const auto read = [&](std::size_t first, std::size_t end) -> status {
            for (; first < end; ++first) ++done[first];
            return {};
        };
        faulty of_rows{how};
        refused(detail::in_pieces(64, of_rows, read));

        faulty counts{how, ~std::size_t{0}};
        REQUIRE(fold(ple_full{}.hidden.up, ple.given(), "", {}, counts).ok());
        for (std::size_t good = 0; good < counts.handed; good += counts.handed - 1) {
            faulty folds{how, good};
            const auto table = fold(ple_full{}.hidden.up, ple.given(), "", {}, folds);
            REQUIRE_FALSE(table.ok());
            refused(table.failure());
        }
    }
}

}  // namespace executor_checked_executor_test
