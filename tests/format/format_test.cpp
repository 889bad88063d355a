// Stored numbers and their f32: every 16-bit pattern, rounding, blocks, and reading at any address.
#include <tiffin/format/any_format.hpp>
#include <tiffin/tensor.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace format_format_test {

namespace {

// IEEE 754 binary16 and bfloat16 from their definition: sign, exponent, fraction.
double decode(std::uint32_t bits, int exponent_bits, int fraction_bits) {
    const std::uint32_t fraction = bits & ((1u << fraction_bits) - 1u);
    const auto exponent = static_cast<int>((bits >> fraction_bits) & ((1u << exponent_bits) - 1u));
    const double sign = (bits >> 15) != 0 ? -1 : 1;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                             : sign * std::numeric_limits<double>::infinity();
    const double steps = exponent == 0 ? fraction : fraction + (1u << fraction_bits);
    return sign * std::ldexp(steps, (exponent == 0 ? 1 : exponent) - bias - fraction_bits);
}

bool same(double wanted, float got) {
    if (std::isnan(wanted)) return std::isnan(got);
    return wanted == got && std::signbit(wanted) == std::signbit(got);
}

}  // namespace

TEST_CASE("every f16 and every bf16 widens exactly") {
    std::size_t wrong = 0;
    for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        if (!same(decode(bits, 5, 10), tiffin::f16_to_f32(half))) ++wrong;
        if (!same(decode(bits, 8, 7), tiffin::bf16_to_f32(half))) ++wrong;
    }
    CHECK(wrong == 0);
}

TEST_CASE("numbers are read at any address, each format by its own size") {
    unsigned char memory[64];
    for (std::size_t offset = 0; offset < 8; ++offset) {
        CAPTURE(offset);
        const float numbers[3] = {1.5f, -2.25f, 1e-40f};
        std::memcpy(memory + offset, numbers, sizeof numbers);
        for (std::size_t i = 0; i < 3; ++i)
            CHECK(tiffin::load_as_f32(memory + offset, tiffin::dtype::f32, i) == numbers[i]);
        const std::uint16_t halves[3] = {0x3E00, 0xC080, 0x0001};
        std::memcpy(memory + offset, halves, sizeof halves);
        CHECK(tiffin::load_as_f32(memory + offset, tiffin::dtype::f16, 0) == 1.5f);
        CHECK(tiffin::load_as_f32(memory + offset, tiffin::dtype::f16, 1) == -2.25f);
        CHECK(tiffin::load_as_f32(memory + offset, tiffin::dtype::f16, 2) == 0x1p-24f);
        CHECK(tiffin::load_as_f32(memory + offset, tiffin::dtype::bf16, 0) == 0.125f);
        CHECK(tiffin::load_as_f32(memory + offset, tiffin::dtype::bf16, 1) == -4.0f);
        CHECK(tiffin::load_as_f32(memory + offset, tiffin::dtype::bf16, 2) == 0x1p-133f);
    }
}

// The nearest of all numbers that a format has, the one with an even last bit between two: by search.
template <class Decode>
std::uint16_t nearest(float v, const Decode& widen, std::uint16_t infinity) {
    if (std::isnan(v)) return 0;
    std::uint16_t low = 0, high = infinity;  // magnitudes ascend with their bits
    const double wanted = std::fabs(static_cast<double>(v));
    // Beyond the largest number it is as if there were one more.
    const double last = widen(static_cast<std::uint16_t>(infinity - 1)),
                 before = widen(static_cast<std::uint16_t>(infinity - 2));
    const auto value = [&](std::uint16_t bits) {
        return bits == infinity ? last + (last - before) : static_cast<double>(widen(bits));
    };
    while (high - low > 1) {
        const auto middle = static_cast<std::uint16_t>((low + high) / 2);
        (value(middle) <= wanted ? low : high) = middle;
    }
    const double below = wanted - value(low), above = value(high) - wanted;
    const std::uint16_t bits = below < above || (below == above && low % 2 == 0) ? low : high;
    return static_cast<std::uint16_t>(bits | (std::signbit(v) ? 0x8000u : 0u));
}

TEST_CASE("f16 and bf16 are rounded to the nearest, ties to even") {
    tiffin_test::random_numbers random(3);
    std::size_t wrong = 0;
    const auto check = [&](float v) {
        if (tiffin::f32_to_f16(v) != nearest(v, tiffin::f16_to_f32, 0x7C00)) ++wrong;
        if (tiffin::f32_to_bf16(v) != nearest(v, tiffin::bf16_to_f32, 0x7F80)) ++wrong;
    };
    for (std::uint32_t bits = 0; bits < 0x7C00u; ++bits) {
        // Every half, the middle to the next one, and their neighbours.
        const float half = tiffin::f16_to_f32(static_cast<std::uint16_t>(bits));
        const float middle = bits + 1 == 0x7C00u
                                 ? 65520.0f
                                 : (half + tiffin::f16_to_f32(static_cast<std::uint16_t>(bits + 1))) / 2;
        for (const float v : {half, middle}) {
            check(v);
            check(-v);
            check(std::nextafter(v, 1e9f));
            check(std::nextafter(v, -1e9f));
        }
    }
    for (int i = 0; i < 100'000; ++i) {
        auto bits = static_cast<std::uint32_t>(random.below(std::size_t{1} << 32));
        if (i % 3 == 0) bits = (bits & 0xFFFF0000u) | 0x8000u;  // between two bf16
        const auto v = std::bit_cast<float>(bits);
        if (!std::isnan(v)) check(v);
    }
    CHECK(wrong == 0);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(std::isnan(tiffin::f16_to_f32(tiffin::f32_to_f16(nan))));
    CHECK(std::isnan(tiffin::f16_to_f32(tiffin::f32_to_f16(std::bit_cast<float>(0x7F800001u)))));
    CHECK(std::isnan(tiffin::bf16_to_f32(tiffin::f32_to_bf16(std::bit_cast<float>(0x7F800001u)))));
}

// What ggml's quantize_row_q8_0_ref, quantize_row_q4_0_ref and quantize_row_q4_1_ref make of these 64 numbers. (Two million blocks
// of random, regular, tiny and constant numbers gave the same bits when the quantisers were written.)
TEST_CASE("q8_0, q4_0 and q4_1 have ggml's bits") {
    float numbers[64];
    for (int i = 0; i < 64; ++i)
        numbers[i] = i < 32 ? 0.37f * static_cast<float>((i * 29 + 7) % 61 - 30)
                            : std::ldexp(static_cast<float>((i * 17 + 5) % 23 - 11), -(i % 9));
    constexpr unsigned char eight[68] = {
        0x98, 0x2D, 0x9F, 0x19, 0x92, 0x0D, 0x85, 0x00, 0x7B, 0xF3, 0x6E, 0xE7, 0x61, 0xDA, 0x55, 0xCD, 0x48,
        0xC0, 0x3B, 0xB4, 0x2F, 0xA7, 0x22, 0x9A, 0x15, 0x8E, 0x08, 0x81, 0xFC, 0x77, 0xEF, 0x6A, 0xE2, 0x5D,
        0x08, 0x2C, 0x04, 0x01, 0x00, 0xFF, 0x7F, 0x10, 0xF0, 0xEC, 0x07, 0x00, 0xFF, 0xFF, 0x00, 0x00, 0xD0,
        0x2C, 0x0A, 0xFF, 0xFD, 0x02, 0x00, 0x00, 0x81, 0x47, 0x0C, 0xFA, 0xF7, 0x04, 0x00, 0x00, 0xFF, 0x6F};
    constexpr unsigned char four[36] = {0x8D, 0x3D, 0xC2, 0x3A, 0xB1, 0x29, 0xA0, 0x28, 0x9F,
                                        0x17, 0x9F, 0x06, 0x8E, 0xF6, 0x7D, 0xF5, 0x6D, 0xE4,
                                        0x00, 0xBC, 0x78, 0x88, 0x88, 0x88, 0x80, 0x87, 0xF9,
                                        0x49, 0x78, 0x88, 0x98, 0x88, 0x88, 0x88, 0x8B, 0x15};
    constexpr unsigned char four_from_least[40] = {
        0xD2, 0x3D, 0x8D, 0xC9, 0xB2, 0x39, 0xA1, 0x28, 0xA0, 0x28, 0x9F, 0x17, 0x8E, 0x06,
        0x7D, 0xF5, 0x7D, 0xE5, 0x6C, 0xD4, 0x44, 0x3C, 0x00, 0xC8, 0x88, 0x78, 0x77, 0x87,
        0x8F, 0x78, 0x07, 0xC6, 0x88, 0x78, 0x77, 0x87, 0x88, 0x77, 0x75, 0xEA};
    tiffin::q8_0::storage q8[2];
    tiffin::q4_0::storage q4[2];
    tiffin::q4_1::storage least[2];
    for (int b = 0; b < 2; ++b) {
        tiffin::q8_0::encode(numbers + 32 * b, q8[b]);
        tiffin::q4_0::encode(numbers + 32 * b, q4[b]);
        tiffin::q4_1::encode(numbers + 32 * b, least[b]);
    }
    CHECK(std::memcmp(q8, eight, sizeof eight) == 0);
    CHECK(std::memcmp(q4, four, sizeof four) == 0);
    CHECK(std::memcmp(least, four_from_least, sizeof four_from_least) == 0);
}

// The documented error of each format, and blocks read number by number.
TEST_CASE("blocks: errors within their bounds, zeros exact") {
    tiffin_test::random_numbers random(5);
    for (int i = 0; i < 2000; ++i) {
        float numbers[32], eight[32], four[32], from_least[32];
        const float scale = std::ldexp(1.0f, static_cast<int>(random.below(20)) - 10);
        for (float& v : numbers) v = random.signed_unit(scale);
        float most = 0;
        for (const float v : numbers) most = std::fmax(most, std::fabs(v));
        tiffin::q8_0::storage q8;
        tiffin::q4_0::storage q4;
        tiffin::q8_0::encode(numbers, q8);
        tiffin::q4_0::encode(numbers, q4);
        tiffin::q8_0::decode(q8, eight);
        tiffin::q4_0::decode(q4, four);
        tiffin::q4_1::storage q41;
        tiffin::q4_1::encode(numbers, q41);
        tiffin::q4_1::decode(q41, from_least);
        for (std::size_t k = 0; k < 32; ++k) {
            // Half a step (a whole one where 8 would have been needed), the rounding of d to f16, which is
            // absolute below 2^-14, and a few roundings of f32.
            const float few = most * 0x1p-11f + most * 0x1p-20f;
            CHECK(std::fabs(eight[k] - numbers[k]) <= most / 254 + few + 127 * 0x1p-25f);
            CHECK(std::fabs(four[k] - numbers[k]) <= most / 8 + few + 8 * 0x1p-25f);
            // Half a step of 2 most / 15 at the most, and the roundings of d (15 times) and m to f16.
            CHECK(std::fabs(from_least[k] - numbers[k]) <= most / 15 + 2 * few + 16 * 0x1p-25f);
            CHECK(tiffin::load_as_f32(&q8, tiffin::dtype::q8_0, k) == eight[k]);
            CHECK(tiffin::load_as_f32(&q41, tiffin::dtype::q4_1, k) == from_least[k]);
            CHECK(tiffin::load_as_f32(&q4, tiffin::dtype::q4_0, k) == four[k]);
        }
    }
    const float zeros[32] = {};
    float back[32];
    tiffin::q8_0::storage q8;
    tiffin::q4_0::storage q4;
    tiffin::q8_0::encode(zeros, q8);
    tiffin::q8_0::decode(q8, back);
    for (const float v : back) CHECK(v == 0);
    tiffin::q4_0::encode(zeros, q4);
    tiffin::q4_0::decode(q4, back);
    for (const float v : back) CHECK(v == 0);
}

// The tests' own encoders, on which all tests of 16-bit weights rely.
TEST_CASE("encoders: to the next number towards zero") {
    tiffin_test::random_numbers random(3);
    for (int i = 0; i < 1000; ++i) {
        const float v = random.signed_unit(std::ldexp(1.0f, static_cast<int>(random.below(30)) - 20));
        CAPTURE(v);
        const float half = tiffin::f16_to_f32(tiffin_test::to_f16(v));
        CHECK(std::fabs(half) <= std::fabs(v));
        CHECK(std::fabs(v - half) <= std::fmax(std::fabs(v) * 0x1p-10f, 0x1p-24f));
        CHECK(std::signbit(half) == std::signbit(v));
        const float brain = tiffin::bf16_to_f32(tiffin_test::to_bf16(v));
        CHECK(std::fabs(brain) <= std::fabs(v));
        CHECK(std::fabs(v - brain) <= std::fabs(v) * 0x1p-7f);
    }
}

TEST_CASE("formats have the names and sizes of safetensors") {
    using tiffin::dtype;
    CHECK(tiffin::name_of(dtype::f32) == "F32");
    CHECK(tiffin::name_of(dtype::f16) == "F16");
    CHECK(tiffin::name_of(dtype::bf16) == "BF16");
    CHECK(tiffin::name_of(dtype::i32) == "I32");
    CHECK(tiffin::name_of(dtype::i64) == "I64");
    CHECK(tiffin::size_of(dtype::f32) == 4);
    CHECK(tiffin::size_of(dtype::f16) == 2);
    CHECK(tiffin::size_of(dtype::bf16) == 2);
    CHECK(tiffin::size_of(dtype::i32) == 4);
    CHECK(tiffin::size_of(dtype::i64) == 8);
    for (const dtype type : {dtype::f32, dtype::f16, dtype::bf16, dtype::i32, dtype::i64})
        CHECK(tiffin::block_of(type) == 1);
    CHECK(tiffin::bytes_of(dtype::q8_0, 64) == 68);
    CHECK(tiffin::bytes_of(dtype::q4_0, 64) == 36);
}

}  // namespace format_format_test
