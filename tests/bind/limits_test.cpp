// Sizes that cannot be counted, tens of thousands of tensors, and objects that hold nothing: an error each,
// soon.
#include <tiffin/block/delayed.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/runtime/any_layer.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <chrono>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace bind_limits_test {
using namespace tiffin;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t d = 12, f = 20, most = std::numeric_limits<std::size_t>::max();

tensor_set small() {
    return tensor_set(tiffin_test::tensors_wanted(mlp{}), {{d, f, 1}, {}, {}, 0u, 3});
}

template <class Made>
void refused(const Made& made, errc code, const std::string& where, const std::string& word) {
    REQUIRE_FALSE(made.ok());
    CHECK(made.failure().code == code);
    CHECK(made.failure().where == where);
    CHECK_MESSAGE(made.failure().what.find(word) != std::string::npos, made.failure().what);
}

// So far from what a search among all names would take that no machine's noise matters: that took 22 seconds.
constexpr std::chrono::seconds soon(8);

}  // namespace

TEST_CASE("limits: options of prepare that no memory holds") {
    const tensor_set tensors = small();
    const auto with = [&](const auto& backend, const prepare_options& options) {
        return try_prepare<mlp>(tensors.given(), backend, options);
    };
    const std::vector<float> x = random_rows(3, d, 1);
    const auto works = [&](auto made) {
        REQUIRE(made.ok());
        std::vector<float> y(x.size());
        CHECK(made->try_call(x, {}, y).ok());
    };
    // Any number of tokens is a wish; the limit on the workspace decides.
    works(with(simd{}, {.tokens = most}));
    works(with(eigen{}, {.tokens = most}));
    works(with(reference{}, {.tokens = most, .workers = most}));
    works(with(simd{}, {.tokens = most / 3, .workers = most}));
    // Without one there is no such memory.
    refused(with(simd{}, {.tokens = most, .workspace_limit = most}), errc::workspace, "tokens", "no memory");
}

TEST_CASE("limits: shapes whose bytes overflow") {
    const float number = 1;
    const std::size_t huge = std::size_t{1} << 33;
    weights given;
    given.add("up_proj.weight", &number, {huge, huge}).add("down_proj.weight", &number, {huge, huge});
    refused(try_prepare<mlp>(given, simd{}), errc::shape, "up_proj.weight", "overflow");
    weights absent;  // a table without memory of its own
    absent.add_gathered("stem_embed.weight", dtype::f32, {huge, huge});
    refused(try_prepare<stem>(absent, simd{}), errc::shape, "stem_embed.weight", "overflow");
}

TEST_CASE("limits: tens of thousands of tensors") {
    const float number = 1;
    const auto start = std::chrono::steady_clock::now();
    {
        weights given;
        for (std::size_t i = 0; i < 80000; ++i) given.add("t" + std::to_string(i), &number, {1});
        refused(try_prepare<mlp>(given, simd{}), errc::missing_tensor, "up_proj.weight", "missing");
        given.add("t777", &number, {1});
        refused(try_prepare<mlp>(given, simd{}), errc::duplicate_tensor, "t777", "tensors 777 and 80000");
    }
    constexpr std::size_t experts = 8192;
    const std::vector<float> numbers(experts, 0.5f);
    weights given;
    for (std::size_t e = 0; e < experts; ++e)
        for (const char* name : {".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"})
            given.add("experts." + std::to_string(e) + name, numbers.data(), {1, 1});
    given.add("router.weight", numbers.data(), {experts, 1});
    const auto made = try_prepare<moe<swiglu>>(given, reference{}, {.tokens = 1, .workers = 1});
    CHECK(made.ok());
    CHECK(std::chrono::steady_clock::now() - start < soon);
}

TEST_CASE("limits: a layer that was moved from") {
    const tensor_set tensors = small();
    const std::vector<float> x = random_rows(3, d, 1);
    std::vector<float> y(x.size(), 5.0f);
    auto layer = prepare<mlp>(tensors.given(), simd{});
    auto taken = std::move(layer);
    CHECK(taken.try_call(x, {}, y).ok());
    std::vector<float> untouched(x.size(), 5.0f);
    refused(layer.try_call(x, {}, untouched), errc::empty, "layer", "moved from");
    CHECK(layer.workspace_bytes(3, 1) == 0);
    any_layer empty;
    workspace memory(1 << 16);
    refused(empty.try_call(x, {}, untouched, memory), errc::empty, "layer", "holds nothing");
    any_layer held(std::move(taken)), again = std::move(held);
    CHECK(again.try_call(x, {}, y, memory).ok());
    refused(held.try_call(x, {}, untouched, memory), errc::empty, "layer", "holds nothing");
    CHECK(untouched == std::vector<float>(x.size(), 5.0f));
}

TEST_CASE("limits: carried residuals over no layers") {
    carried_residuals none(0, 5, d);
    none.begin();
    CHECK(none.due() == 0);
    CHECK(none.layers() == 0);
    refused(none.check(2, 5, d), errc::size, "carried", "carries over 0 layers");
    const carried_residuals uncountable(2, std::size_t{1} << 62, 4);
    refused(uncountable.check(2, 8, 4), errc::size, "carried", "has room for 0 tokens");
}

}  // namespace bind_limits_test
