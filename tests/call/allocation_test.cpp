// No allocation in a call, on any backend, for any number of tokens.
#include <cstddef>

namespace {
std::size_t eigen_refusals = 0;
}
// Eigen allocates with malloc: these two make it tell when it does while it may not.
#define EIGEN_RUNTIME_NO_MALLOC
#define eigen_assert(condition) static_cast<void>((condition) || ++eigen_refusals)
#include <Eigen/Core>

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
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

// A norm, tables, two projections in the hidden source.
using block_used = ffn<gate<silu>, sum<dense, token_embedding>, multiply, project<rms>>;

// What `use` allocates, in all of its threads.
template <class Use>
std::size_t allocations_in(const Use& use) {
    Eigen::internal::set_is_malloc_allowed(false);
    eigen_refusals = 0;
    const std::size_t before = allocations;
    use();
    const std::size_t after = allocations;
    Eigen::internal::set_is_malloc_allowed(true);
    return after - before + eigen_refusals;
}

}  // namespace

TEST_CASE("the counters count") {
    // Volatile, or the compiler may leave both out.
    int* volatile kept = nullptr;
    CHECK(allocations_in([&] { kept = new int(1); }) == 1);
    delete kept;
    std::vector<float> numbers;
    CHECK(allocations_in([&] { numbers.resize(100); }) == 1);
    Eigen::VectorXf vector;
    CHECK(allocations_in([&] { vector.resize(100); }) == 1);
    CHECK(allocations_in([] {}) == 0);
}

namespace {

enum class executors { serial, openmp };

template <class Backend>
void check_calls(std::initializer_list<std::size_t> token_counts, executors which) {
    // Scalar loops are slow; else wide enough that Eigen's product would want more than it takes from the
    // stack.
    constexpr bool slow = std::is_same_v<Backend, reference<>>;
    constexpr std::size_t d = slow ? 30 : 300, f = slow ? 52 : 520, vocab = 20, most = 600;
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(block_used{}),
                                          {{d, f, vocab}, {}, {}, ~0u, 3});
    auto computed = prepare<block_used>(tensors.given(), Backend{}, {.tokens = 512, .workers = 2});
    const std::vector<float> x = tiffin_test::random_rows(most, d, 5);
    const std::vector<std::int32_t> ids = tiffin_test::random_ids(most, vocab, 7);
    std::vector<float> y(most * d);
    workspace memory = computed.make_workspace(250, 2);
    const serial alone;
    const openmp team{2};
    team(2, [](std::size_t) {});  // the team's own memory
    const executor_ref execute = which == executors::serial ? executor_ref(alone) : executor_ref(team);
    for (const std::size_t tokens : token_counts) {
        CAPTURE(tokens);
        const std::span<const float> in(x.data(), tokens * d);
        const std::span<const std::int32_t> with(ids.data(), tokens);
        const std::span<float> out(y.data(), tokens * d);
        CHECK(allocations_in([&] { computed(in, with, out, execute); }) == 0);
        CHECK(allocations_in([&] { std::as_const(computed)(in, with, out, memory, execute); }) == 0);
        bool ok = false;
        CHECK(
            allocations_in([&] {
                ok =
                    computed.try_call(matrix_view<const float>(x.data(), tokens, d), with, out, execute).ok();
            }) == 0);
        CHECK(ok);
    }
}

}  // namespace

// On the calling thread and on a team: alone, Eigen would like to start threads of its own.
TEST_CASE_TEMPLATE("calls do not allocate", Backend, reference<>, eigen, simd<>) {
    check_calls<Backend>({1, 7, 300, 600}, executors::serial);
    check_calls<Backend>({1, 7, 300, 600}, executors::openmp);
}
