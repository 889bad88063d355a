// Weights as a format stores them, whether or not numbers can be rounded to it.
#pragma once

#include <tiffin/format/given_format.hpp>
#include <tiffin/table/row_store.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tiffin_test {

// Every format of table rows.
inline constexpr tiffin::dtype row_formats[] = {
    tiffin::dtype::f32,   tiffin::dtype::bf16,    tiffin::dtype::f16,    tiffin::dtype::q8_0,
    tiffin::dtype::q4_0,  tiffin::dtype::q4_1,    tiffin::dtype::q5_0,   tiffin::dtype::q5_1,
    tiffin::dtype::q2_k,  tiffin::dtype::q3_k,    tiffin::dtype::q4_k,   tiffin::dtype::q5_k,
    tiffin::dtype::q6_k,  tiffin::dtype::iq4_nl,  tiffin::dtype::iq4_xs, tiffin::dtype::mxfp4,
    tiffin::dtype::nvfp4, tiffin::dtype::f8_e4m3, tiffin::dtype::f8_e5m2};

// Blocks of noise with scales of moderate size.
inline std::vector<unsigned char> noise_blocks(tiffin::dtype type, std::size_t numbers, std::uint64_t seed) {
    std::vector<unsigned char> bytes(tiffin::bytes_of(type, numbers));
    for (unsigned char& b : bytes) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        b = static_cast<unsigned char>(seed >> 56);
    }
    tiffin::with_given_format(type, [&](auto format) {
        typename decltype(format)::storage block;
        for (std::size_t at = 0; at < bytes.size(); at += sizeof block) {
            std::memcpy(&block, bytes.data() + at, sizeof block);
            const auto scale = static_cast<std::uint16_t>(0x2000 + bytes[at] * 4);  // 2^-7 to 2^-6
            if constexpr (requires { block.scale; }) block.scale = scale;
            if constexpr (requires { block.least; }) block.least = scale;
            if constexpr (requires { block.exponent; }) block.exponent = 118;
            if constexpr (requires { block.scales.fill(0x18); } &&
                          decltype(format)::type == tiffin::dtype::nvfp4)
                block.scales.fill(0x18);
            if constexpr (decltype(format)::block == 1 && sizeof block == 1)
                block &= 0xBF;  // magnitudes below 2, no NaN
            std::memcpy(bytes.data() + at, &block, sizeof block);
        }
    });
    return bytes;
}

// Numbers rounded to the format; noise where it is only read.
inline std::vector<std::byte> stored_blocks(tiffin::dtype type, const float* numbers, std::size_t count,
                                            std::uint64_t seed) {
    std::vector<std::byte> bytes(tiffin::bytes_of(type, count));
    if (!tiffin::has_encode(type))
        std::memcpy(bytes.data(), noise_blocks(type, count, seed).data(), bytes.size());
    else
        tiffin::encode_row({1, count, type}, numbers, bytes.data());
    return bytes;
}

inline std::vector<float> numbers_of_blocks(const std::vector<unsigned char>& bytes, tiffin::dtype type,
                                            std::size_t count) {
    std::vector<float> made(count);
    tiffin::read_as_f32(bytes.data(), type, 0, count, made.data());
    return made;
}

}  // namespace tiffin_test
