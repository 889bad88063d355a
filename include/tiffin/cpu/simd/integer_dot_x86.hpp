// Dot products of small integers by the instructions of x86-64: pairs of 16 bits, pairs of bytes, or four bytes with
// VNNI.
#pragma once

#include <tiffin/cpu/simd/amx.hpp>
#include <tiffin/cpu/simd/lanes.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE4_1__)

TIFFIN_BEGIN

namespace simd_detail {

// The operations of the dots below on registers of one width.
struct bytes_128 {
    using reg = __m128i;
    static reg load(const std::byte* from) noexcept {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }
    static reg widen(const std::byte* from) noexcept {
        return _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    }
    static reg all(std::int32_t v) noexcept { return _mm_set1_epi32(v); }
    static reg and_all(reg v, char bits) noexcept { return _mm_and_si128(v, _mm_set1_epi8(bits)); }
    static reg either(reg a, reg b) noexcept { return _mm_or_si128(a, b); }
    template <int By>  // to the right where negative
    static reg left(reg v) noexcept {
        if constexpr (By < 0)
            return _mm_srli_epi16(v, -By);
        else
            return _mm_slli_epi16(v, By);
    }
    static reg add_32(reg a, reg b) noexcept { return _mm_add_epi32(a, b); }
    static reg add_16(reg a, reg b) noexcept { return _mm_add_epi16(a, b); }
    static reg pairs_of_16(reg a, reg b) noexcept { return _mm_madd_epi16(a, b); }
    static reg pairs_of_8(reg a, reg b) noexcept { return _mm_maddubs_epi16(a, b); }
};

#    if defined(__AVX2__)
struct bytes_256 {
    using reg = __m256i;
    static reg load(const std::byte* from) noexcept {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    }
    static reg widen(const std::byte* from) noexcept {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
    static reg all(std::int32_t v) noexcept { return _mm256_set1_epi32(v); }
    static reg and_all(reg v, char bits) noexcept { return _mm256_and_si256(v, _mm256_set1_epi8(bits)); }
    static reg either(reg a, reg b) noexcept { return _mm256_or_si256(a, b); }
    template <int By>  // to the right where negative
    static reg left(reg v) noexcept {
        if constexpr (By < 0)
            return _mm256_srli_epi16(v, -By);
        else
            return _mm256_slli_epi16(v, By);
    }
    static reg add_32(reg a, reg b) noexcept { return _mm256_add_epi32(a, b); }
    static reg add_16(reg a, reg b) noexcept { return _mm256_add_epi16(a, b); }
    static reg pairs_of_16(reg a, reg b) noexcept { return _mm256_madd_epi16(a, b); }
    static reg pairs_of_8(reg a, reg b) noexcept { return _mm256_maddubs_epi16(a, b); }
#        if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    static reg fours(reg to, reg a, reg b) noexcept { return _mm256_dpbusd_epi32(to, a, b); }
#        elif defined(__AVXVNNI__)
    static reg fours(reg to, reg a, reg b) noexcept { return _mm256_dpbusd_avx_epi32(to, a, b); }
#        endif
};
#    endif

#    if defined(__AVX512BW__)
struct bytes_512 {
    using reg = __m512i;
    static reg load(const std::byte* from) noexcept { return _mm512_loadu_si512(from); }
    static reg widen(const std::byte* from) noexcept {
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
    static reg all(std::int32_t v) noexcept { return _mm512_set1_epi32(v); }
    static reg and_all(reg v, char bits) noexcept { return _mm512_and_si512(v, _mm512_set1_epi8(bits)); }
    static reg either(reg a, reg b) noexcept { return _mm512_or_si512(a, b); }
    template <int By>  // to the right where negative
    static reg left(reg v) noexcept {
        if constexpr (By < 0)
            return _mm512_srli_epi16(v, unsigned{-By});
        else
            return _mm512_slli_epi16(v, unsigned{By});
    }
    static reg add_32(reg a, reg b) noexcept { return _mm512_add_epi32(a, b); }
    static reg add_16(reg a, reg b) noexcept { return _mm512_add_epi16(a, b); }
    static reg pairs_of_16(reg a, reg b) noexcept { return _mm512_madd_epi16(a, b); }
    static reg pairs_of_8(reg a, reg b) noexcept { return _mm512_maddubs_epi16(a, b); }
#        if defined(__AVX512VNNI__)
    static reg fours(reg to, reg a, reg b) noexcept { return _mm512_dpbusd_epi32(to, a, b); }
#        endif
};
#    endif

// A group of inputs, broadcast to every lane.
template <class Bytes, class Input, std::size_t Group>
typename Bytes::reg in_all_lanes(const Input* x) noexcept {
    static_assert(sizeof(Input) * Group == 4);
    std::int32_t bits;
    std::memcpy(&bits, x, sizeof bits);
    return Bytes::all(bits);
}

// Weights of 4 bits, or of 5 or 6 with the high bits stored apart: unsigned codes.
template <class Bytes>
struct packed_levels {
    using weights = typename Bytes::reg;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        return Bytes::and_all(Bytes::template left<-4 * Half>(Bytes::load(from)), 15);
    }
    template <int Left, int Mask>
    static weights join(weights low, const std::byte* high) noexcept {
        return Bytes::either(low, Bytes::and_all(Bytes::template left<Left>(Bytes::load(high)), Mask));
    }
};

// Bytes widened to 16 bits, two products per sum: no overflow, and one widening serves many tokens.
template <class Bytes>
struct pairs_dot {
    static constexpr std::size_t group = 2, instructions = 2;
    static constexpr int stored_bias = 0;
    using input = std::int16_t;
    using weights = typename Bytes::reg;
    using sums = typename Bytes::reg;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        return Bytes::widen(from);
    }
    static sums begin(std::int32_t offset) noexcept { return Bytes::all(offset); }
    static void add(sums& to, weights w, const input* x) noexcept {
        to = Bytes::add_32(to, Bytes::pairs_of_16(w, in_all_lanes<Bytes, input, group>(x)));
        pin(to);
    }
    static sums total(sums of, std::int32_t) noexcept { return of; }
};

// 4 bits as unsigned bytes, two products per 16-bit sum: 8 sums of two products up to 15 x 127 fit.
template <class Bytes>
struct nibbles_dot : packed_levels<Bytes> {
    static constexpr std::size_t group = 4, instructions = 2;
    static constexpr int stored_bias = 0;
    using input = std::int8_t;
    using weights = typename Bytes::reg;
    using sums = typename Bytes::reg;

    static sums begin(std::int32_t) noexcept { return Bytes::all(0); }
    static void add(sums& to, weights w, const input* x) noexcept {
        to = Bytes::add_16(to, Bytes::pairs_of_8(w, in_all_lanes<Bytes, input, group>(x)));
        pin(to);
    }
    static sums total(sums of, std::int32_t offset) noexcept {
        return Bytes::add_32(Bytes::pairs_of_16(of, Bytes::all(0x00010001)), Bytes::all(offset));
    }
};

// 5 or 6 bits likewise, then summed in 32 bits: two products up to 63 x 127 fit 16 bits, more do not.
template <class Bytes>
struct wide_levels_dot : packed_levels<Bytes> {
    static constexpr std::size_t group = 4, instructions = 3;
    static constexpr int stored_bias = 0;
    using input = std::int8_t;
    using weights = typename Bytes::reg;
    using sums = typename Bytes::reg;

    static sums begin(std::int32_t offset) noexcept { return Bytes::all(offset); }
    static void add(sums& to, weights w, const input* x) noexcept {
        to = Bytes::add_32(to, Bytes::pairs_of_16(Bytes::pairs_of_8(w, in_all_lanes<Bytes, input, group>(x)),
                                                  Bytes::all(0x00010001)));
        pin(to);
    }
    static sums total(sums of, std::int32_t) noexcept { return of; }
};

// Unsigned bytes times signed ones, four products per sum (VNNI).
template <class Bytes, int Bits>
struct fours_dot : packed_levels<Bytes> {
    static constexpr std::size_t group = 4, instructions = 1;
    static constexpr bool fours = true;
    static constexpr int stored_bias = Bits == 8 ? 128 : 0;
    using input = std::int8_t;
    using weights = typename Bytes::reg;
    using sums = typename Bytes::reg;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        if constexpr (Bits == 8)
            return Bytes::load(from);
        else
            return packed_levels<Bytes>::template load<Half>(from);
    }
    static sums begin(std::int32_t offset) noexcept { return Bytes::all(offset); }
    static void add(sums& to, weights w, const input* x) noexcept {
        to = Bytes::fours(to, w, in_all_lanes<Bytes, input, group>(x));
        pin(to);
    }
    static sums total(sums of, std::int32_t) noexcept { return of; }
};

template <class Bytes, int Bits>
auto dot_of() {
    if constexpr (requires(typename Bytes::reg r) { Bytes::fours(r, r, r); }) return fours_dot<Bytes, Bits>{};
#    if defined(TIFFIN_EMULATE_AMX)
    else
        return fours_dot<emulated_fours<Bytes>, Bits>{};
#    else
    else if constexpr (Bits == 8)
        return pairs_dot<Bytes>{};
    else if constexpr (Bits == 4)
        return nibbles_dot<Bytes>{};
    else
        return wide_levels_dot<Bytes>{};
#    endif
}

// For an instruction set that extends another, overload resolution takes the nearest one.
template <int Bits>
auto machine_dot(xsimd::sse4_1, std::integral_constant<int, Bits>) {
    return dot_of<bytes_128, Bits>();
}
#    if defined(__AVX2__)
template <int Bits>
auto machine_dot(xsimd::avx2, std::integral_constant<int, Bits>) {
    return dot_of<bytes_256, Bits>();
}
#    endif
#    if defined(__AVX512BW__)
template <int Bits>
auto machine_dot(xsimd::avx512bw, std::integral_constant<int, Bits>) {
    return dot_of<bytes_512, Bits>();
}
#    endif

}  // namespace simd_detail

TIFFIN_END

#endif
