// The formats that tensors can be given in: those that weights can be kept in, and those that are only read.
#pragma once

#include <tiffin/format/any_format.hpp>
#include <tiffin/format/codes.hpp>
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

// Reads values [first, first + count) of floating-point memory at any alignment as f32, exactly as the format defines
// them. Cost: decodes each block once.
void read_as_f32(const void* data, dtype type, std::size_t first, std::size_t count, float* to) noexcept;
#if TIFFIN_DEFINITIONS
TIFFIN_INLINE void read_as_f32(const void* data, dtype type, std::size_t first, std::size_t count,
                               float* to) noexcept {
    with_given_format(type, [&](auto format) {
        using storage = typename decltype(format)::storage;
        constexpr std::size_t block = decltype(format)::block;
        const auto* const bytes = static_cast<const unsigned char*>(data);
        for (std::size_t done = 0; done < count;) {
            const std::size_t i = first + done, inside = i % block;
            const std::size_t taken = std::min(block - inside, count - done);
            storage stored;
            std::memcpy(&stored, bytes + i / block * sizeof stored, sizeof stored);
            if (taken == block) {
                decltype(format)::decode(stored, to + done);
            } else {
                std::array<float, block> numbers;
                decltype(format)::decode(stored, numbers.data());
                std::copy_n(numbers.data() + inside, taken, to + done);
            }
            done += taken;
        }
    });
}
#endif

// Reads value i. Cost: decodes its block.
inline float load_as_f32(const void* data, dtype type, std::size_t i) noexcept {
    float number;
    read_as_f32(data, type, i, 1, &number);
    return number;
}

TIFFIN_END
