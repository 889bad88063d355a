// Sums of products of small whole numbers, a register of outputs at a time.
#pragma once

#include <tiffin/backend/simd/lanes.hpp>
#include <tiffin/format/q4_0.hpp>
#include <tiffin/format/q8_0.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

TIFFIN_BEGIN

namespace simd_detail {

// Weights come in groups: an output's bytes of `group` inputs, beside those of the next output.
// An integer_dot has
//   group         inputs that an instruction joins to a sum;
//   input         what it wants activations as;
//   bias          how much a weight within it exceeds the number stored, which the caller takes off;
//   stored_bias   what is added to a stored byte when it is packed (modulo 256);
//   weights       a register of groups, load<Half>(bytes) from packed ones. Half 1: the high 4 bits;
//   sums          sums of a register of outputs; add(sums, weights, inputs) adds one group's products;
//   total(sums)   the sums of a whole block as f32.
// All sums are exact: at most 32 products of magnitude 2^15.

// Plain numbers, one input at a time, for the compiler to find instructions for.
template <class Arch, bool Nibbles>
struct portable_dot {
    static constexpr std::size_t lane_count = width<Arch>;
    static constexpr std::size_t group = 1;
    static constexpr int bias = Nibbles ? 8 : 0;
    static constexpr int stored_bias = 0;
    using input = std::int16_t;
    using weights = std::array<std::int16_t, lane_count>;
    using sums = std::array<std::int32_t, lane_count>;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        weights to;
        for (std::size_t i = 0; i < lane_count; ++i)
            to[i] = Nibbles ? static_cast<std::int16_t>(std::to_integer<int>(from[i]) >> 4 * Half & 15)
                            : static_cast<std::int8_t>(from[i]);
        return to;
    }
    static void add(sums& to, const weights& w, const input* x) noexcept {
        for (std::size_t i = 0; i < lane_count; ++i) to[i] += std::int32_t{w[i]} * *x;
    }
    static lanes<Arch> total(const sums& of) noexcept {
        alignas(64) float numbers[lane_count];
        for (std::size_t i = 0; i < lane_count; ++i) numbers[i] = static_cast<float>(of[i]);
        return lanes<Arch>::load_aligned(numbers);
    }
};

#if defined(__SSE4_1__)

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

#endif

template <class Arch, codec Weights>
auto choose_integer_dot() {
    constexpr bool nibbles = std::same_as<Weights, q4_0>;
#if defined(__SSE4_1__)
    const auto of = []<class Bytes>(Bytes) {
        if constexpr (requires(typename Bytes::reg r) { Bytes::fours(r, r, r); })
            return fours_dot<Bytes, nibbles>{};
        else if constexpr (nibbles)
            return nibbles_dot<Bytes>{};
        else
            return pairs_dot<Bytes>{};
    };
#    if defined(__AVX512BW__)
    if constexpr (std::is_base_of_v<xsimd::avx512bw, Arch>)
        return of(bytes_512{});
    else
#    endif
#    if defined(__AVX2__)
        if constexpr (std::is_base_of_v<xsimd::avx2, Arch>)
        return of(bytes_256{});
    else
#    endif
        if constexpr (std::is_base_of_v<xsimd::sse4_1, Arch>)
        return of(bytes_128{});
    else
#endif
        return portable_dot<Arch, nibbles>{};
}

template <class Arch, codec Weights>
using integer_dot = decltype(choose_integer_dot<Arch, Weights>());

}  // namespace simd_detail

TIFFIN_END
