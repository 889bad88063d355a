// The formats that tensors can be given in: those that weights can be kept in, and those that are only read.
#pragma once

#include <tiffin/format/any_format.hpp>
#include <tiffin/format/codes.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/format/f64.hpp>
#include <tiffin/format/f8.hpp>
#include <tiffin/format/iq4_xs.hpp>
#include <tiffin/format/mxfp4.hpp>
#include <tiffin/format/nvfp4.hpp>
#include <tiffin/format/q2_k.hpp>
#include <tiffin/format/q3_k.hpp>
#include <tiffin/format/q5_1.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

TIFFIN_BEGIN

// Calls visit(Format{}) for the format of this type. Precondition: one of table rows, neither I32, I64 nor F64.
template <class Visit>
constexpr decltype(auto) with_table_format(dtype type, const Visit& visit) {
    switch (type) {
        case dtype::q5_1: return visit(q5_1{});
        case dtype::q2_k: return visit(q2_k{});
        case dtype::q3_k: return visit(q3_k{});
        case dtype::iq4_nl: return visit(iq4_nl{});
        case dtype::iq4_xs: return visit(iq4_xs{});
        case dtype::mxfp4: return visit(mxfp4{});
        case dtype::nvfp4: return visit(nvfp4{});
        case dtype::f8_e4m3: return visit(f8_e4m3{});
        case dtype::f8_e5m2: return visit(f8_e5m2{});
        case dtype::f8_e8m0: return visit(f8_e8m0{});
        case dtype::u8: return visit(u8_codes{});
        case dtype::u4: return visit(u4_codes{});
        default: return with_kept_format(type, visit);
    }
}
// The same for the format of given tensors. Precondition: not an integer type.
template <class Visit>
constexpr decltype(auto) with_given_format(dtype type, const Visit& visit) {
    return type == dtype::f64 ? visit(f64{}) : with_table_format(type, visit);
}

// An upper bound of the magnitudes in this format, from the largest f16 scale; infinity for formats not listed.
constexpr float bound_of(dtype type) noexcept {
    constexpr float scale = 65504;
    switch (type) {
        case dtype::q8_0:
        case dtype::iq4_nl: return 127 * scale;
        case dtype::q4_0: return 8 * scale;
        case dtype::q4_1: return 16 * scale;
        case dtype::q5_0: return 16 * scale;
        case dtype::q5_1: return 32 * scale;
        default: return std::numeric_limits<float>::infinity();
    }
}

// Widens `count` blocks, at any alignment.
template <stored_format Format>
void decode_blocks(const std::byte* from, std::size_t count, float* to) noexcept {
    for (; count > 0; --count, from += sizeof(typename Format::storage), to += Format::block) {
        typename Format::storage stored;
        std::memcpy(&stored, from, sizeof stored);
        Format::decode(stored, to);
    }
}
using decode_blocks_function = void (*)(const std::byte* from, std::size_t count, float* to) noexcept;
// Precondition: not an integer type.
constexpr decode_blocks_function decoder_of(dtype type) noexcept {
    return with_given_format(
        type, [](auto format) -> decode_blocks_function { return &decode_blocks<decltype(format)>; });
}

// The first f16 scale of a block that is not finite, or 0 where all are.
using odd_scale_function = std::uint16_t (*)(const std::byte* block) noexcept;
// Null: the format's blocks have no f16 scales. Precondition: not an integer type.
constexpr odd_scale_function odd_scale_of(dtype type) noexcept {
    return with_given_format(type, [](auto format) -> odd_scale_function {
        if constexpr (requires { format.scales({}); })
            return [](const std::byte* from) noexcept {
                typename decltype(format)::storage block;
                std::memcpy(&block, from, sizeof block);
                for (const std::uint16_t bits : decltype(format)::scales(block))
                    if (!detail::is_finite_f16(bits)) return bits;
                return std::uint16_t{0};
            };
        else
            return nullptr;
    });
}

// Reads values [first, first + count) of floating-point memory at any alignment as f32, exactly as the format defines
// them. Cost: decodes each block once.
void read_as_f32(const void* data, dtype type, std::size_t first, std::size_t count, float* to) noexcept;
#if TIFFIN_DEFINITIONS
TIFFIN_INLINE void read_as_f32(const void* data, dtype type, std::size_t first, std::size_t count,
                               float* to) noexcept {
    const decode_blocks_function decode = decoder_of(type);
    const std::size_t block = block_of(type);
    const auto* const blocks = static_cast<const std::byte*>(data);
    const auto read_part = [&](std::size_t inside, std::size_t taken) {
        std::array<float, 256> numbers;
        decode(blocks + bytes_of(type, first - inside), 1, numbers.data());
        std::copy_n(numbers.data() + inside, taken, to);
        first += taken, count -= taken, to += taken;
    };
    if (const std::size_t inside = first % block; inside != 0 && count != 0)
        read_part(inside, std::min(block - inside, count));
    const std::size_t whole = count - count % block;
    decode(blocks + bytes_of(type, first), whole / block, to);
    first += whole, count -= whole, to += whole;
    if (count != 0) read_part(0, count);
}
#endif

// Reads value i. Cost: decodes its block.
inline float load_as_f32(const void* data, dtype type, std::size_t i) noexcept {
    float number;
    read_as_f32(data, type, i, 1, &number);
    return number;
}

TIFFIN_END
