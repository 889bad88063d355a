// The formats that are only read: every bit as ggml has it, and errors for scales that are not finite.
#include <tiffin/bind/format_checks.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/format/given_format.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace format_given_formats_test {
using namespace tiffin;

namespace {

// Blocks of noise, their f16 scales made finite.
template <class Format>
std::vector<unsigned char> noise(std::size_t blocks, std::initializer_list<std::size_t> scales) {
    using storage = typename Format::storage;
    std::vector<unsigned char> bytes(blocks * sizeof(storage));
    std::uint64_t state = Format::block * sizeof(storage);
    for (unsigned char& b : bytes) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b = static_cast<unsigned char>(state >> 56);
    }
    for (std::size_t i = 0; i < blocks; ++i) {
        for (const std::size_t at : scales) bytes[i * sizeof(storage) + at + 1] &= 0xBF;
        if (Format::type == dtype::mxfp4) bytes[i * sizeof(storage)] &= 0x7F;
    }
    return bytes;
}

// FNV-1a.
std::uint64_t hash_of(const std::vector<float>& numbers) {
    std::uint64_t h = 0xcbf29ce484222325u;
    for (const float v : numbers)
        for (int byte = 0; byte < 4; ++byte)
            h = (h ^ (std::bit_cast<std::uint32_t>(v) >> 8 * byte & 255u)) * 0x100000001b3u;
    return h;
}

// `expected`: the hash of what dequantize_row_* of ggml makes of the same bytes (llama.cpp as of the
// llama-cpp-python 0.3.36 source package, x86-64, little endian).
template <class Format>
void check_bits(std::initializer_list<std::size_t> scales, std::uint64_t expected) {
    INFO(name_of(Format::type));
    constexpr std::size_t blocks = 37, count = blocks * Format::block;
    const auto bytes = noise<Format>(blocks, scales);
    CHECK(size_of(Format::type) == sizeof(typename Format::storage));
    CHECK(block_of(Format::type) == Format::block);
    std::vector<float> numbers(count);
    read_as_f32(bytes.data(), Format::type, 0, count, numbers.data());
    CHECK(hash_of(numbers) == expected);
    // Any part is the part of the whole.
    std::vector<float> part(count);
    for (const std::size_t first : {std::size_t{1}, std::size_t{31}, Format::block, 3 * Format::block - 5})
        for (const std::size_t size : {std::size_t{1}, Format::block - 1, 2 * Format::block + 7}) {
            read_as_f32(bytes.data(), Format::type, first, size, part.data());
            CHECK(std::memcmp(part.data(), numbers.data() + first, size * sizeof(float)) == 0);
            CHECK(std::bit_cast<std::uint32_t>(load_as_f32(bytes.data(), Format::type, first)) ==
                  std::bit_cast<std::uint32_t>(numbers[first]));
        }
    for (const float v : numbers) CHECK(std::fabs(v) <= bound_of(Format::type));
    // A scale that is not finite is refused, with its block.
    const std::string name = "w";
    const tensor_view given{bytes.data(), Format::type, {blocks, Format::block}};
    CHECK(detail::check_scales(given, name).ok());
    for (const std::size_t at : scales) {
        auto bad = bytes;
        bad[5 * sizeof(typename Format::storage) + at + 1] = 0x7E;
        const auto s = detail::check_scales({bad.data(), Format::type, {blocks, Format::block}}, name);
        REQUIRE(!s.ok());
        CHECK(s.failure().code == errc::value);
        CHECK(s.failure().what ==
              "the scale of block 5 (numbers from " + std::to_string(5 * Format::block) + " on) is NaN");
    }
}

}  // namespace

TEST_CASE("given formats: the bits of ggml") {
    check_bits<q8_0>({0}, 0xfe615397892d2bf5);
    check_bits<q4_0>({0}, 0xcac1fa3df6cd7486);
    check_bits<q4_1>({0, 2}, 0x92ce8f94093d4885);
    check_bits<q5_0>({0}, 0x14cd293c35618533);
    check_bits<q5_1>({0, 2}, 0x36ea1640a6cc8425);
    check_bits<q2_k>({80, 82}, 0x4f1e6c35727e372b);
    check_bits<q3_k>({108}, 0x6b40014b0920831f);
    check_bits<q4_k>({0, 2}, 0x7d8ef055271f2033);
    check_bits<q5_k>({0, 2}, 0x456cf5f94417aef1);
    check_bits<q6_k>({208}, 0x8391f1bf16e41d46);
    check_bits<iq4_nl>({0}, 0xba95a11a50718573);
    check_bits<iq4_xs>({0}, 0x86e75ff69625ee40);
    check_bits<mxfp4>({}, 0xf1cd744d49690192);
    check_bits<nvfp4>({}, 0xc6f46c00528c890a);
}

TEST_CASE("given formats: all numbers of 8 bits") {
    const auto number = [](dtype type, unsigned bits) {
        const auto stored = static_cast<unsigned char>(bits);
        return static_cast<double>(load_as_f32(&stored, type, 0));
    };
    // From the definition: m 2^(e - bias - mantissa bits), e = 0 subnormal.
    const auto defined = [](unsigned bits, int mantissa, int bias) {
        const int e = static_cast<int>(bits & 0x7F) >> mantissa,
                  m = static_cast<int>(bits) & ((1 << mantissa) - 1);
        const double v = std::ldexp(e == 0 ? m : m + (1 << mantissa), std::max(e, 1) - bias - mantissa);
        return (bits & 0x80) != 0 ? -v : v;
    };
    for (unsigned bits = 0; bits < 256; ++bits) {
        CAPTURE(bits);
        const double wide = number(dtype::f8_e4m3, bits), tall = number(dtype::f8_e5m2, bits);
        if ((bits & 0x7F) == 0x7F)
            CHECK(std::isnan(wide));
        else
            CHECK(wide == defined(bits, 3, 7));
        if ((bits & 0x7F) > 0x7C)
            CHECK(std::isnan(tall));
        else if ((bits & 0x7F) == 0x7C)
            CHECK(tall == (bits > 0x7F ? -HUGE_VAL : HUGE_VAL));
        else
            CHECK(tall == defined(bits, 2, 15));
        const double power = number(dtype::f8_e8m0, bits);
        if (bits == 255)
            CHECK(std::isnan(power));
        else
            CHECK(power == std::ldexp(1.0, static_cast<int>(bits) - 127));
        CHECK(number(dtype::u8, bits) == bits);
        const auto pair = static_cast<unsigned char>(bits);
        CHECK(load_as_f32(&pair, dtype::u4, 0) == static_cast<float>(bits % 16));
        CHECK(load_as_f32(&pair, dtype::u4, 1) == static_cast<float>(bits / 16));
    }
    CHECK(number(dtype::f8_e4m3, 0x7E) == 448);
    CHECK(number(dtype::f8_e5m2, 0x7B) == 57344);
    CHECK(number(dtype::f8_e4m3, 0x01) == 0x1p-9);
}

TEST_CASE("given formats: the NaN of MXFP4 is refused") {
    std::array<mxfp4::storage, 2> blocks{};
    blocks[1].exponent = 255;
    const auto s = detail::check_scales({blocks.data(), dtype::mxfp4, {1, 64}}, "w");
    REQUIRE(!s.ok());
    CHECK(s.failure().what == "the scale of block 1 (numbers from 32 on) is NaN");
}

TEST_CASE("given formats: rows are whole blocks") {
    const std::array<q4_k::storage, 4> blocks{};
    const std::vector<float> zeros(128 * 128);
    weights given;
    given.add("gate_proj.weight", {blocks.data(), dtype::q4_k, {8, 128}});
    given.add("up_proj.weight", zeros.data(), {8, 128});
    given.add("down_proj.weight", zeros.data(), {128, 8});
    const auto made = try_prepare<swiglu>(given, reference<>{});
    REQUIRE(!made.ok());
    CHECK(made.failure().code == errc::shape);
    CHECK(made.failure().message() ==
          "gate_proj.weight: has shape (8, 128); in Q4_K its last axis must be a multiple of 256");
}

}  // namespace format_given_formats_test
