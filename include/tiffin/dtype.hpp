// The number formats that tensors are given in.
#pragma once

#include <tiffin/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

TIFFIN_BEGIN

// A number format of given tensors. The first six are named as safetensors names them; q8_0 and q4_0
// are ggml's blocks of 32 numbers along a tensor's last axis (see format/). Files keep blocks as bytes.
enum class dtype : std::uint8_t { f32, f16, bf16, i32, i64, u8, q8_0, q4_0 };

constexpr std::string_view name_of(dtype t) noexcept {
    constexpr std::array<std::string_view, 8> names{
        {"F32", "F16", "BF16", "I32", "I64", "U8", "Q8_0", "Q4_0"}};
    return names[static_cast<std::size_t>(t)];
}

// Numbers that are stored together.
constexpr std::size_t block_of(dtype t) noexcept {
    return t == dtype::q8_0 || t == dtype::q4_0 ? 32 : 1;
}

// The bytes of one block: of one number where a block is one.
constexpr std::size_t size_of(dtype t) noexcept {
    constexpr std::array<std::size_t, 8> sizes{{4, 2, 2, 4, 8, 1, 34, 18}};
    return sizes[static_cast<std::size_t>(t)];
}

// The bytes of `numbers` numbers. Precondition: a multiple of the block.
constexpr std::size_t bytes_of(dtype t, std::size_t numbers) noexcept {
    return numbers / block_of(t) * size_of(t);
}

constexpr bool is_integer(dtype t) noexcept {
    return t == dtype::i32 || t == dtype::i64 || t == dtype::u8;
}

TIFFIN_END
