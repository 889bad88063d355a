// Stored numbers and their f32: every 16-bit pattern, and reading at any address.
#include <tiffin/format/f32.hpp>
#include <tiffin/tensor.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

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

TEST_CASE("f32 stores and loads without a change") {
    for (const float v : {0.0f, -0.0f, 1e-45f, 3.4e38f, -1.1f})
        CHECK(std::bit_cast<std::uint32_t>(tiffin::f32::load(tiffin::f32::store(v))) ==
              std::bit_cast<std::uint32_t>(v));
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
}
