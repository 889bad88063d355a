// Sums of products of small whole numbers with the instructions of x86-64: pairs of 16 bits, pairs of bytes,
// or four bytes where the machine has VNNI.
#pragma once

#include <tiffin/cpu/simd/lanes.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE4_1__)

TIFFIN_BEGIN

namespace simd_detail {

// What the dots below need of the registers of a width.
struct bytes_128 {
    using reg = __m128i;
    static reg load(const std::byte* from) noexcept {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }
    static reg widen(const std::byte* from) noexcept {
        return _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    }
    static reg all(std::int32_t v) noexcept { return _mm_set1_epi32(v); }
    static reg nibbles(reg v) noexcept { return _mm_and_si128(v, _mm_set1_epi8(15)); }
    static reg shift(reg v) noexcept { return _mm_srli_epi16(v, 4); }
    static reg add_32(reg a, reg b) noexcept { return _mm_add_epi32(a, b); }
    static reg add_16(reg a, reg b) noexcept { return _mm_add_epi16(a, b); }
    static reg pairs_of_16(reg a, reg b) noexcept { return _mm_madd_epi16(a, b); }
    static reg pairs_of_8(reg a, reg b) noexcept { return _mm_maddubs_epi16(a, b); }
    static auto to_f32(reg v) noexcept { return _mm_cvtepi32_ps(v); }
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
    static reg nibbles(reg v) noexcept { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
    static reg shift(reg v) noexcept { return _mm256_srli_epi16(v, 4); }
    static reg add_32(reg a, reg b) noexcept { return _mm256_add_epi32(a, b); }
    static reg add_16(reg a, reg b) noexcept { return _mm256_add_epi16(a, b); }
    static reg pairs_of_16(reg a, reg b) noexcept { return _mm256_madd_epi16(a, b); }
    static reg pairs_of_8(reg a, reg b) noexcept { return _mm256_maddubs_epi16(a, b); }
#        if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    static reg fours(reg to, reg a, reg b) noexcept { return _mm256_dpbusd_epi32(to, a, b); }
#        elif defined(__AVXVNNI__)
    static reg fours(reg to, reg a, reg b) noexcept { return _mm256_dpbusd_avx_epi32(to, a, b); }
#        endif
    static auto to_f32(reg v) noexcept { return _mm256_cvtepi32_ps(v); }
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
    static reg nibbles(reg v) noexcept { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
    static reg shift(reg v) noexcept { return _mm512_srli_epi16(v, 4); }
    static reg add_32(reg a, reg b) noexcept { return _mm512_add_epi32(a, b); }
    static reg add_16(reg a, reg b) noexcept { return _mm512_add_epi16(a, b); }
    static reg pairs_of_16(reg a, reg b) noexcept { return _mm512_madd_epi16(a, b); }
    static reg pairs_of_8(reg a, reg b) noexcept { return _mm512_maddubs_epi16(a, b); }
#        if defined(__AVX512VNNI__)
    static reg fours(reg to, reg a, reg b) noexcept { return _mm512_dpbusd_epi32(to, a, b); }
#        endif
    static auto to_f32(reg v) noexcept { return _mm512_cvtepi32_ps(v); }
};
#    endif

// The inputs of a group in every lane.
template <class Bytes, class Input, std::size_t Group>
typename Bytes::reg in_all_lanes(const Input* x) noexcept {
    static_assert(sizeof(Input) * Group == 4);
    std::int32_t bits;
    std::memcpy(&bits, x, sizeof bits);
    return Bytes::all(bits);
}

// Bytes as 16 bits, joined by two: nothing can overflow, and widening is paid once for many tokens.
template <class Bytes>
struct pairs_dot {
    static constexpr std::size_t group = 2;
    static constexpr int bias = 0;
    static constexpr int stored_bias = 0;
    using input = std::int16_t;
    using weights = typename Bytes::reg;
    using sums = typename Bytes::reg;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        return Bytes::widen(from);
    }
    static void add(sums& to, weights w, const input* x) noexcept {
        to = Bytes::add_32(to, Bytes::pairs_of_16(w, in_all_lanes<Bytes, input, group>(x)));
        pin(to);
    }
    static auto total(sums of) noexcept { return Bytes::to_f32(of); }
};

// 4 bits as unsigned bytes, joined by two to sums of 16 bits: 8 sums of two products up to
// 15 x 127 fit.
template <class Bytes>
struct nibbles_dot {
    static constexpr std::size_t group = 4;
    static constexpr int bias = 8;
    static constexpr int stored_bias = 0;
    using input = std::int8_t;
    using weights = typename Bytes::reg;
    using sums = typename Bytes::reg;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        return Bytes::nibbles(Half == 0 ? Bytes::load(from) : Bytes::shift(Bytes::load(from)));
    }
    static void add(sums& to, weights w, const input* x) noexcept {
        to = Bytes::add_16(to, Bytes::pairs_of_8(w, in_all_lanes<Bytes, input, group>(x)));
        pin(to);
    }
    static auto total(sums of) noexcept {
        return Bytes::to_f32(Bytes::pairs_of_16(of, Bytes::all(0x00010001)));
    }
};

// Unsigned bytes times signed ones, joined by four (VNNI).
template <class Bytes, bool Nibbles>
struct fours_dot {
    static constexpr std::size_t group = 4;
    static constexpr int bias = Nibbles ? 8 : 128;
    static constexpr int stored_bias = Nibbles ? 0 : 128;
    using input = std::int8_t;
    using weights = typename Bytes::reg;
    using sums = typename Bytes::reg;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        if constexpr (Nibbles)
            return nibbles_dot<Bytes>::template load<Half>(from);
        else
            return Bytes::load(from);
    }
    static void add(sums& to, weights w, const input* x) noexcept {
        to = Bytes::fours(to, w, in_all_lanes<Bytes, input, group>(x));
        pin(to);
    }
    static auto total(sums of) noexcept { return Bytes::to_f32(of); }
};

template <class Bytes, bool Nibbles>
auto dot_of() {
    if constexpr (requires(typename Bytes::reg r) { Bytes::fours(r, r, r); })
        return fours_dot<Bytes, Nibbles>{};
    else if constexpr (Nibbles)
        return nibbles_dot<Bytes>{};
    else
        return pairs_dot<Bytes>{};
}

// Of a set that extends another, the overload for the nearest one is taken.
template <bool Nibbles>
auto machine_dot(xsimd::sse4_1, std::bool_constant<Nibbles>) {
    return dot_of<bytes_128, Nibbles>();
}
#    if defined(__AVX2__)
template <bool Nibbles>
auto machine_dot(xsimd::avx2, std::bool_constant<Nibbles>) {
    return dot_of<bytes_256, Nibbles>();
}
#    endif
#    if defined(__AVX512BW__)
template <bool Nibbles>
auto machine_dot(xsimd::avx512bw, std::bool_constant<Nibbles>) {
    return dot_of<bytes_512, Nibbles>();
}
#    endif

}  // namespace simd_detail

TIFFIN_END

#endif
