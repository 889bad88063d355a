// No allocation in a step of training: forward, backward, the losses, the optimizer.
#include <tiffin/executor/thread_team.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/learn/adamw.hpp>
#include <tiffin/learn/cross_entropy.hpp>
#include <tiffin/learn/router_loss.hpp>
#include <tiffin/train/simd.hpp>

#include "support/doctest.hpp"
#include "support/policies.hpp"
#include "support/tensor_set.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <new>
#include <span>
#include <vector>

namespace {
std::atomic<std::size_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    void* const memory = alignment == 0
                             ? std::malloc(bytes == 0 ? 1 : bytes)
                             : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
}  // namespace

// The array and nothrow forms of the standard library call these.
void* operator new(std::size_t bytes) {
    return counted(bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return counted(bytes, static_cast<std::size_t>(alignment));
}
// Not inlined: g++ would see free() beside a new that it does not inline, and warn.
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}

namespace {

using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;

constexpr std::size_t d = 48, f = 80, vocab = 200, most = 70;

// What `use` allocates, in all of its threads.
template <class Use>
std::size_t allocations_in(const Use& use) {
    const std::size_t before = allocations;
    use();
    return allocations - before;
}

// Weights of a block in f32 that an optimizer may write.
struct parameters {
    std::deque<std::vector<float>> numbers;
    weights given;
    named_memory<float> memory;

    explicit parameters(const tiffin_test::tensor_set& from) {
        const weights all = from.given();
        for (const auto& e : all.entries()) {
            const auto* const first = static_cast<const float*>(e.tensor.data);
            auto& to = numbers.emplace_back(first, first + e.tensor.shape.elements());
            given.add(e.name, to.data(), e.tensor.shape);
            memory.add(e.name, to.data(), e.tensor.shape);
        }
    }
};

template <class Block>
void check_steps(activations keeps, executor_ref execute) {
    parameters values(tiffin_test::tensor_set::of(Block{}, {{d, f, vocab}, {}, {}, ~0u, 3}));
    auto layer = prepare_training<Block>(values.given, simd<>{},
                                         {.tokens = most, .table_rows = vocab, .keeps = keeps, .workers = 2});
    adamw<simd<>> optimizer;
    REQUIRE(optimizer.add("", layer, values.memory).ok());
    router_loss on_logits({.switch_balance = 0.01, .mort_balance = 1e-4, .z = 1e-3});
    const std::vector<float> x = random_rows(most, d, 1), dy = random_rows(most, d, 2);
    const std::vector<std::int32_t> ids = random_ids(most, vocab, 3);
    std::vector<float> y(most * d), dx(most * d);
    std::vector<choice<float>> routes(most * layer.choices());
    std::vector<float> logits(most * layer.experts()), d_logits(logits.size());
    bool all_ok = true;
    const auto ok = [&](const status& s) { all_ok = all_ok && s.ok(); };
    bool is_first = true;
    for (const std::size_t tokens : {most, std::size_t{1}, std::size_t{17}, most}) {
        CAPTURE(tokens);
        training_inputs<float> in{.token_ids = std::span(ids).first(tokens)};
        input_gradients<float> to{.x = {dx.data(), tokens, d}};
        if (!routes.empty()) {
            in.routes = std::span(routes).first(tokens * layer.choices());
            in.logits = {logits.data(), tokens, layer.experts()};
            to.logits = {d_logits.data(), tokens, layer.experts()};
        }
        const matrix_view<const float> rows(x.data(), tokens, d), d_rows(dy.data(), tokens, d);
        const matrix_view<float> out(y.data(), tokens, d);
        CHECK(allocations_in([&] { ok(layer.try_forward(rows, in, out, execute)); }) == 0);
        // Its memory for the experts is taken in the first call.
        const auto on_router = [&] {
            all_ok = all_ok && on_logits(matrix_view<const float>(in.logits), in.routes,
                                         matrix_view<float>(d_logits.data(), tokens, layer.experts()))
                                   .ok();
        };
        if (!routes.empty()) {
            const std::size_t taken = allocations_in(on_router);
            CHECK((taken == 0) != is_first);
            CHECK(allocations_in(on_router) == 0);
        }
        is_first = false;
        CHECK(allocations_in([&] { ok(layer.try_backward(d_rows, to, execute)); }) == 0);
        CHECK(allocations_in([&] { ok(optimizer.step(1e-3, execute)); }) == 0);
        CHECK(allocations_in([&] { layer.clear_gradients(); }) == 0);
    }
    CHECK(all_ok);
    CHECK(optimizer.gradient_norm() > 0);
}

template <class Block>
void check_all() {
    thread_team team(2);
    for (const activations keeps : {activations::kept, activations::recomputed}) {
        check_steps<Block>(keeps, serially);
        check_steps<Block>(keeps, team);
    }
}

}  // namespace

TEST_CASE("training: the counter counts") {
    int* volatile kept = nullptr;  // or the compiler may leave it out
    CHECK(allocations_in([&] { kept = new int(1); }) == 1);
    delete kept;
    CHECK(allocations_in([] {}) == 0);
}

TEST_CASE("training: a step does not allocate, with a table") {
    check_all<stem>();
}
TEST_CASE("training: a step does not allocate, of a mixture") {
    check_all<moe<mlp>>();
}
TEST_CASE("training: a step does not allocate, with a pool") {
    check_all<tiffin_test::mort_of_three<mlp>>();
}

TEST_CASE("training: cross entropy does not allocate") {
    std::vector<float> logits = random_rows(most, vocab, 4);
    const std::vector<std::int32_t> targets = random_ids(most, vocab, 5);
    std::vector<double> losses(most);
    thread_team team(2);
    bool ok = true;
    for (const executor_ref execute : {executor_ref(serially), executor_ref(team)})
        CHECK(allocations_in([&] {
                  ok = ok && softmax_cross_entropy(simd<>{}, {logits.data(), most, vocab}, targets, 1, losses,
                                                   execute)
                                 .ok();
              }) == 0);
    CHECK(ok);
}
