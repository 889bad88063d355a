// Blocks that become blocks of another format: exactly where that is promised, within two roundings of scales where
// those are rounded; and layers whose weights are kept as they are given.
#include <tiffin/format/repacked.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/stored_blocks.hpp"
#include "support/tensor_set.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

namespace format_repacked_test {
using namespace tiffin;
using tiffin_test::noise_blocks;
using tiffin_test::numbers_of_blocks;

namespace {

template <class To>
std::vector<float> repacked_numbers(const std::vector<unsigned char>& bytes, dtype type, std::size_t count) {
    std::vector<float> made(count);
    for (std::size_t i = 0; i < count; i += To::block) {
        typename To::storage block;
        REQUIRE(repack<To>(bytes.data(), type, i, block));
        To::decode(block, made.data() + i);
    }
    return made;
}
constexpr std::size_t count = 256 * 19;

}  // namespace

TEST_CASE("repacked: levels of at most 8 bits stay what they are") {
    for (const dtype type : {dtype::q4_0, dtype::q5_0, dtype::iq4_nl, dtype::mxfp4}) {
        INFO(name_of(type));
        const auto bytes = noise_blocks(type, count, 3);
        CHECK(repacked_numbers<q8_0>(bytes, type, count) == numbers_of_blocks(bytes, type, count));
    }
    const auto bytes = noise_blocks(dtype::q4_0, count, 5);
    CHECK(repacked_numbers<q4_1>(bytes, dtype::q4_0, count) == numbers_of_blocks(bytes, dtype::q4_0, count));
}

TEST_CASE("repacked: Q4_K as Q4_1 is off by the rounding of two scales") {
    const auto bytes = noise_blocks(dtype::q4_k, count, 7);
    const auto made = repacked_numbers<q4_1>(bytes, dtype::q4_k, count);
    const auto wanted = numbers_of_blocks(bytes, dtype::q4_k, count);
    for (std::size_t i = 0; i < count; i += 32) {
        q4_k::storage block;
        std::memcpy(&block, bytes.data() + i / 256 * sizeof block, sizeof block);
        const std::size_t part = i % 256 / 32;
        const double step = double{f16_to_f32(block.scale)} * block.parts.scale(part);
        const double least = double{f16_to_f32(block.least)} * block.parts.least(part);
        for (std::size_t k = i; k < i + 32; ++k)
            // Both roundings are of half an ulp of f16, and the sums' of an ulp of f32.
            CHECK(std::fabs(double{made[k]} - double{wanted[k]}) <=
                  (15 * step + least) * (0x1p-11 + 0x1p-23));
    }
}

TEST_CASE("repacked: nothing where there is no way") {
    q8_0::storage eight;
    q4_1::storage four;
    q4_0::storage steep;
    steep.scale = f32_to_f16(8200.0f);  // -8 d is no f16
    CHECK_FALSE(repack<q4_1>(&steep, dtype::q4_0, 0, four));
    CHECK(repack<q8_0>(&steep, dtype::q4_0, 0, eight));
    steep.scale = 0x7C00;
    CHECK_FALSE(repack<q8_0>(&steep, dtype::q4_0, 0, eight));
    for (const int exponent : {0, 1, 90, 145, 200, 254}) {
        mxfp4::storage far;
        far.exponent = static_cast<std::uint8_t>(exponent);
        CHECK_FALSE(repack<q8_0>(&far, dtype::mxfp4, 0, eight));
    }
    q4_k::storage wide;
    wide.scale = f32_to_f16(2000.0f);
    wide.parts.bytes[0] = 63;
    CHECK_FALSE(repack<q4_1>(&wide, dtype::q4_k, 0, four));
    const auto bytes = noise_blocks(dtype::q6_k, 256, 9);
    CHECK_FALSE(repack<q8_0>(bytes.data(), dtype::q6_k, 0, eight));
    CHECK_FALSE(repack<q4_0>(bytes.data(), dtype::q6_k, 0, steep));
}

namespace {

constexpr std::size_t d = 256, f = 512;

struct given_so {
    std::vector<unsigned char> gate, up, down;
    weights stored, widened;
    std::vector<float> numbers[3];

    given_so(dtype of_gate, dtype of_up, dtype of_down) {
        add("gate_proj.weight", of_gate, gate, {f, d}, 0);
        add("up_proj.weight", of_up, up, {f, d}, 1);
        add("down_proj.weight", of_down, down, {d, f}, 2);
    }

private:
    void add(const char* name, dtype type, std::vector<unsigned char>& bytes, tiffin::shape sizes,
             std::size_t n) {
        if (block_of(type) > 1) {
            bytes = noise_blocks(type, d * f, n + 1);
        } else {
            const auto v = tiffin_test::random_rows(1, d * f, static_cast<unsigned>(n));
            bytes.resize(d * f * sizeof(float));
            std::memcpy(bytes.data(), v.data(), bytes.size());
        }
        numbers[n] = numbers_of_blocks(bytes, type, d * f);
        stored.add(name, {bytes.data(), type, sizes});
        widened.add(name, numbers[n].data(), sizes);
    }
};

template <class Backend>
std::vector<float> run(const weights& given, const Backend& backend, std::size_t tokens) {
    auto layer = try_prepare<swiglu>(given, backend);
    INFO((layer.ok() ? "" : layer.failure().message()));
    REQUIRE(layer.ok());
    const auto x = tiffin_test::random_rows(tokens, d, 5);
    std::vector<float> y(x.size());
    REQUIRE(layer->try_call(x, token_inputs{}, y).ok());
    return y;
}

}  // namespace

TEST_CASE("kept as given: each weight in its own format, or the nearest") {
    const simd<any_format, f32, f32> exact{.weights = kept_as_given};
    // What is kept exactly gives the bits of its numbers.
    for (const dtype type : {dtype::f32, dtype::q8_0, dtype::q4_0, dtype::q4_1, dtype::q5_0, dtype::iq4_nl}) {
        INFO(name_of(type));
        const given_so all(type, type, type), mixed(type, type, dtype::q8_0), apart(dtype::q5_0, type, type);
        CHECK(run(all.stored, exact, 3) == run(all.widened, simd<>{}, 3));
        CHECK(run(mixed.stored, exact, 40) == run(mixed.widened, simd<>{}, 40));
        // Gate and up are multiplied together: in one format. That of Q4_1 beside Q5_0 is encoded anew.
        if (type != dtype::q4_1) CHECK(run(apart.stored, exact, 3) == run(apart.widened, simd<>{}, 3));
    }
    const given_so k(dtype::q4_k, dtype::q4_k, dtype::q6_k);
    CHECK(run(k.stored, exact, 3) != run(k.stored, simd<any_format, f32, f32>{{dtype::q8_0}, {}, {}}, 3));
    const given_so one(dtype::q4_k, dtype::q4_k, dtype::q4_k);
    CHECK(run(one.stored, exact, 3) == run(one.stored, simd<q4_1, f32, f32>{}, 3));
    // Activations are rounded beside each weight as beside that format alone.
    for (const dtype type : {dtype::f32, dtype::q8_0, dtype::q4_0, dtype::q4_1}) {
        const given_so all(type, type, type);
        CHECK(run(all.stored, simd<any_format>{.weights = kept_as_given}, 9) ==
              run(all.stored, simd<any_format>{.weights = {type}}, 9));
    }
}

TEST_CASE("kept as given: two levels of scales, beside rounded activations") {
    const simd<any_format> kept{.weights = kept_as_given};
    for (const dtype type : {dtype::q5_0, dtype::q4_k, dtype::q5_k, dtype::q6_k}) {
        INFO(name_of(type));
        const given_so all(type, type, type), mixed(dtype::q4_k, dtype::q4_k, type);
        for (const given_so* const one : {&all, &mixed}) {
            const auto y = run(one->stored, kept, 200);
            const auto wanted = run(one->widened, simd<f32, f32, q8_0>{}, 40);
            float largest = 0, off = 0;
            for (std::size_t i = 0; i < wanted.size(); ++i) {
                largest = std::max(largest, std::fabs(wanted[i]));
                off = std::max(off, std::fabs(y[i] - wanted[i]));
            }
            // The weights are the same numbers. Of the f hidden ones those that lie between two levels may be rounded to
            // the other: a 127th of the largest of its block, and so about 1 / (127 sqrt(f)) of y; four of them.
            CHECK(off <= largest * 4 / 127 / std::sqrt(static_cast<float>(f)));
            // A token's output does not depend on the tokens beside it.
            for (const std::size_t tokens : {1u, 2u, 3u, 7u, 16u, 40u})
                CHECK(run(one->stored, kept, tokens) ==
                      std::vector<float>(y.begin(), y.begin() + static_cast<std::ptrdiff_t>(tokens * d)));
        }
    }
}

TEST_CASE("kept as given: what numbers ask for is asked of them alone") {
    // f32 at a width that blocks cannot have, in a backend that keeps blocks as well.
    const auto v = tiffin_test::random_rows(1, 7 * 40, 3);
    weights odd;
    odd.add("gate_proj.weight", v.data(), {40, 7}).add("up_proj.weight", v.data(), {40, 7});
    odd.add("down_proj.weight", v.data(), {7, 40});
    CHECK(try_prepare<swiglu>(odd, simd<any_format>{.weights = kept_as_given}).ok());
    CHECK_FALSE(try_prepare<swiglu>(odd, simd<any_format>{.weights = {dtype::q8_0}}).ok());
    // Formats that nothing is rounded to have kernels beside rounded activations only.
    for (const dtype type : {dtype::bf16, dtype::q4_1, dtype::q5_0, dtype::q4_k, dtype::q5_k, dtype::q6_k})
        CHECK(kept_as(type) == type);
    CHECK(kept_as(dtype::q4_k, false) == dtype::q4_1);
    for (const dtype type : {dtype::q5_0, dtype::q5_k, dtype::q6_k})
        CHECK(kept_as(type, false) == dtype::q8_0);
    for (const dtype type : {dtype::q5_1, dtype::q3_k, dtype::iq4_nl, dtype::mxfp4})
        CHECK(kept_as(type) == dtype::q8_0);
}

TEST_CASE("kept as given: a format that is only read cannot be asked for") {
    const given_so all(dtype::q6_k, dtype::q6_k, dtype::q6_k);
    const auto refused = [&](const auto& backend, std::string_view which) {
        const auto made = try_prepare<swiglu>(all.stored, backend);
        REQUIRE_FALSE(made.ok());
        CHECK(made.failure().code == errc::option);
        CHECK(made.failure().where == which);
        CHECK(made.failure().what.find("Q6_K") != std::string::npos);
    };
    refused(simd<any_format>{.weights = {dtype::q6_k}}, "weights");
    refused(simd<any_format, any_format>{{}, {dtype::q6_k}, {}}, "tables");
    refused(simd<any_format, any_format, f32>{{dtype::q6_k}, {}, {}}, "weights");
}

}  // namespace format_repacked_test
