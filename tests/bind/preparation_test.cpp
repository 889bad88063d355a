// Preparing by several threads, with progress told, from every format that files have: the same bits.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/thread_team.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

namespace bind_preparation_test {
using namespace tiffin;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t tokens = 5;

template <class Layer>
std::vector<float> rows_of(Layer& layer, std::size_t d_model) {
    const std::vector<float> x = tiffin_test::random_rows(tokens, d_model, 7);
    const std::vector<std::int32_t> ids{3, 0, 3, 1, 2};
    std::vector<float> y(x.size());
    const status s = layer.try_call(x, ids, y);
    INFO((s.ok() ? "" : s.failure().message()));
    REQUIRE(s.ok());
    return y;
}

template <class Block, class Backend>
void check_threads(const tiffin_test::sizes& sizes, const Backend& backend) {
    const Block block{};
    const tensor_set tensors = tensor_set::of(block, {.sizes = sizes, .dense = {}, .tables = {}});
    const weights given = tensors.given();
    std::size_t bytes = 0;
    for (const auto& e : given.entries()) bytes += bytes_of(e.tensor.type, e.tensor.shape.elements());
    auto alone = try_prepare(block, given, backend);
    REQUIRE(alone.ok());
    thread_team team(3);
    std::vector<std::pair<std::size_t, std::size_t>> told;
    prepare_options options;
    options.execute = team;
    options.progress = [&](std::size_t done, std::size_t all) { told.emplace_back(done, all); };
    auto together = try_prepare(block, given, backend, options);
    REQUIRE(together.ok());
    const auto a = rows_of(*alone, sizes.d_model), b = rows_of(*together, sizes.d_model);
    CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    // Told more and more, and all at the end, once.
    REQUIRE(!told.empty());
    CHECK(told.back().first == bytes);
    for (std::size_t i = 0; i < told.size(); ++i) {
        CHECK(told[i].second == bytes);
        if (i > 0) CHECK(told[i].first > told[i - 1].first);
    }
}

// Blocks of noise with small scales, as `type`, of `count` numbers.
std::vector<unsigned char> noise(dtype type, std::size_t count) {
    std::vector<unsigned char> bytes(bytes_of(type, count));
    std::uint64_t state = size_of(type);
    for (unsigned char& b : bytes) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b = static_cast<unsigned char>(state >> 56);
    }
    with_given_format(type, [&](auto format) {
        typename decltype(format)::storage block;
        for (std::size_t at = 0; at < bytes.size(); at += sizeof block) {
            std::memcpy(&block, bytes.data() + at, sizeof block);
            if constexpr (requires { block.scale; }) block.scale = 0x2000;  // 2^-7
            if constexpr (requires { block.least; }) block.least = 0x2000;
            if constexpr (requires { block.exponent; }) block.exponent = 120;
            std::memcpy(bytes.data() + at, &block, sizeof block);
        }
    });
    return bytes;
}

constexpr dtype formats[] = {dtype::q8_0,   dtype::q4_0,   dtype::q4_1, dtype::q5_0, dtype::q5_1,
                             dtype::q2_k,   dtype::q3_k,   dtype::q4_k, dtype::q5_k, dtype::q6_k,
                             dtype::iq4_nl, dtype::iq4_xs, dtype::mxfp4};

}  // namespace

TEST_CASE("preparation: by several threads it is the same to the bit, and it is told") {
    const tiffin_test::sizes sizes{.d_model = 96, .d_ff = 417, .vocab = 4};
    check_threads<swiglu>(sizes, simd{});
    check_threads<swiglu>({.d_model = 96, .d_ff = 416, .vocab = 4}, simd<q8_0, q8_0>{});
    check_threads<stem>({.d_model = 96, .d_ff = 416, .vocab = 4}, simd<q4_0, q8_0>{});
    check_threads<structmoe>(sizes, simd{});
    check_threads<moe<swiglu>>(sizes, simd<bf16, bf16>{});
    check_threads<meki>(sizes, simd{});
    check_threads<swiglu>(sizes, reference<>{});
}

TEST_CASE("preparation: weights of every format that files have are packed as their numbers are") {
#if defined(TIFFIN_TEST_SMALL)
    constexpr std::size_t d = 768, f = 3 * 32;
#else
    constexpr std::size_t d = 768, f = 11 * 32;
#endif
    for (const dtype type : formats) {
        INFO(name_of(type));
        const auto up = noise(type, f * d);
        std::vector<float> widened(f * d), down(d * f);
        read_as_f32(up.data(), type, 0, f * d, widened.data());
        for (std::size_t i = 0; i < down.size(); ++i) down[i] = widened[(i * 7) % widened.size()];
        const auto check = [&](const auto& backend) {
            weights as_stored, as_numbers;
            for (weights* w : {&as_stored, &as_numbers}) w->add("down_proj.weight", down.data(), {d, f});
            as_stored.add("up_proj.weight", {up.data(), type, {f, d}});
            as_numbers.add("up_proj.weight", widened.data(), {f, d});
            auto one = try_prepare<mlp>(as_stored, backend), other = try_prepare<mlp>(as_numbers, backend);
            INFO((one.ok() ? "" : one.failure().message()));
            REQUIRE(one.ok());
            REQUIRE(other.ok());
            const auto a = rows_of(*one, d), b = rows_of(*other, d);
            CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
            for (const float v : a) REQUIRE(std::isfinite(v));
        };
        check(simd{});
        check(simd<bf16>{});
        check(reference<>{});
        // Blocks that are kept as they are were not rounded again, nor those whose levels are (format.repacked).
        if (type != dtype::q4_0) check(simd<q4_0>{});
        constexpr dtype same_levels[] = {dtype::q8_0, dtype::q4_0, dtype::q5_0, dtype::iq4_nl, dtype::mxfp4};
        if (std::ranges::find(same_levels, type) == std::end(same_levels)) check(simd<q8_0>{});
    }
}

TEST_CASE("preparation: tables of a format that is only read are kept as their numbers") {
    constexpr std::size_t d = 32, f = 256, vocab = 4;
    std::vector<float> gate(f * d, 0.1f), down(d * f, 0.01f), widened(vocab * f);
    for (const dtype type : formats) {
        INFO(name_of(type));
        const auto rows = noise(type, vocab * f);
        read_as_f32(rows.data(), type, 0, vocab * f, widened.data());
        weights as_stored, as_numbers;
        for (weights* w : {&as_stored, &as_numbers})
            w->add("gate_proj.weight", gate.data(), {f, d}).add("down_proj.weight", down.data(), {d, f});
        as_stored.add("stem_embed.weight", {rows.data(), type, {vocab, f}});
        as_numbers.add("stem_embed.weight", widened.data(), {vocab, f});
        auto one = try_prepare<stem>(as_stored, simd{}), other = try_prepare<stem>(as_numbers, simd{});
        REQUIRE(one.ok());
        REQUIRE(other.ok());
        CHECK(one->reads_in_place().empty());
        CHECK(rows_of(*one, d) == rows_of(*other, d));
        auto exact = try_prepare<stem>(as_stored, reference<>{});
        REQUIRE(exact.ok());
        const auto y = rows_of(*exact, d), z = rows_of(*other, d);
        // Sums of 256 products of up to 4: f32 against double.
        for (std::size_t i = 0; i < y.size(); ++i)
            CHECK(std::abs(y[i] - z[i]) <= 1e-4f * std::abs(y[i]) + 1e-5f);
    }
}

}  // namespace bind_preparation_test
