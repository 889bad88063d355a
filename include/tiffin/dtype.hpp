// The number formats that tensors are given in.
#pragma once

#include <tiffin/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

TIFFIN_BEGIN

// A number format of given tensors. The first six are named as in safetensors. The others are ggml's blocks of values
// along a tensor's last axis (see format/), except f64, which only `reference` and training on it read, the formats of 8
// bits, and u4, which as u8 holds the codes of rows with a scale and a bias (format/scales.hpp). Values can be rounded to
// the formats up to q4_1; those after it are read only (kept_as() gives those that are kept as stored). Files store blocks
// as bytes.
enum class dtype : std::uint8_t {
    f32,
    f16,
    bf16,
    i32,
    i64,
    u8,
    q8_0,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    iq4_nl,
    iq4_xs,
    mxfp4,
    f64,
    f8_e4m3,
    f8_e5m2,
    f8_e8m0,
    nvfp4,
    u4
};

namespace detail {

struct dtype_facts {
    std::string_view name;
    std::size_t block;  // values that are stored together
    std::size_t bytes;  // of a block
};
// In the order of dtype.
inline constexpr std::array<dtype_facts, 25> dtypes{{
    {"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},       {"I32", 1, 4},      {"I64", 1, 8},
    {"U8", 1, 1},       {"Q8_0", 32, 34},   {"Q4_0", 32, 18},     {"Q4_1", 32, 20},   {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},   {"Q2_K", 256, 84},  {"Q3_K", 256, 110},   {"Q4_K", 256, 144}, {"Q5_K", 256, 176},
    {"Q6_K", 256, 210}, {"IQ4_NL", 32, 18}, {"IQ4_XS", 256, 136}, {"MXFP4", 32, 17},  {"F64", 1, 8},
    {"F8_E4M3", 1, 1},  {"F8_E5M2", 1, 1},  {"F8_E8M0", 1, 1},    {"NVFP4", 64, 36},  {"U4", 2, 1},
}};
constexpr const dtype_facts& facts_of(dtype t) noexcept {
    return dtypes[static_cast<std::size_t>(t)];
}

}  // namespace detail

constexpr std::string_view name_of(dtype t) noexcept {
    return detail::facts_of(t).name;
}

// Values per block; 1 for plain formats.
constexpr std::size_t block_of(dtype t) noexcept {
    return detail::facts_of(t).block;
}

// Bytes per block; per value for plain formats.
constexpr std::size_t size_of(dtype t) noexcept {
    return detail::facts_of(t).bytes;
}

// The bytes of `numbers` values. Precondition: a multiple of block_of(t).
constexpr std::size_t bytes_of(dtype t, std::size_t numbers) noexcept {
    return numbers / block_of(t) * size_of(t);
}

constexpr bool is_integer(dtype t) noexcept {
    return t == dtype::i32 || t == dtype::i64 || t == dtype::u8;
}

constexpr bool is_f8(dtype t) noexcept {
    return t == dtype::f8_e4m3 || t == dtype::f8_e5m2 || t == dtype::f8_e8m0;
}

TIFFIN_END
