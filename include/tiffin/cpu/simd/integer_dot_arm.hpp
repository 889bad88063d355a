// Dot products of small integers by the dot product instruction of 64-bit Arm, which phones have had since 2018.
#pragma once

#include <tiffin/cpu/simd/lanes.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

TIFFIN_BEGIN

namespace simd_detail {

// Signed bytes, four products per sum; weights of fewer than 8 bits are unsigned codes.
template <int Bits>
struct signed_fours_dot {
    static constexpr std::size_t group = 4, instructions = 1;
    static constexpr int stored_bias = 0;
    using input = std::int8_t;
    using weights = int8x16_t;
    using sums = int32x4_t;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        const uint8x16_t bytes = vld1q_u8(reinterpret_cast<const std::uint8_t*>(from));
        if constexpr (Bits == 8)
            return vreinterpretq_s8_u8(bytes);
        else if constexpr (Half == 0)
            return vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
        else
            return vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
    }
    template <int Left, int Mask>
    static weights join(weights low, const std::byte* high) noexcept {
        const uint8x16_t bytes =
            vshlq_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(high)), vdupq_n_s8(Left));
        return vorrq_s8(low, vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(Mask))));
    }
    static sums begin(std::int32_t offset) noexcept { return vdupq_n_s32(offset); }
    static void add(sums& to, weights w, const input* x) noexcept {
        std::int32_t bits;
        std::memcpy(&bits, x, sizeof bits);
        to = vdotq_s32(to, w, vreinterpretq_s8_s32(vdupq_n_s32(bits)));
        pin(to);
    }
    static sums total(sums of, std::int32_t) noexcept { return of; }
};

template <int Bits>
auto machine_dot(xsimd::neon64, std::integral_constant<int, Bits>) {
    return signed_fours_dot<Bits>{};
}

}  // namespace simd_detail

TIFFIN_END

#endif
