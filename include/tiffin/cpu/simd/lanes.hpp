// Registers of f32: loads from any number format, and the partial ones at the end of a row.
#pragma once

#include <tiffin/cpu/simd/backend.hpp>
#include <tiffin/format/any_format.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/grammar/concepts.hpp>

#include <xsimd/xsimd.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// Unrolls a loop over the registers of a tile, an array whose elements become registers only then: g++ does not do so
// at -O2 by itself. Not with the address sanitizer, which would compile for minutes and is slow anyway.
#if defined(__has_feature)
#    if __has_feature(address_sanitizer)
#        define TIFFIN_UNROLL(count)
#    endif
#endif
#if !defined(TIFFIN_UNROLL)
#    define TIFFIN_PRAGMA(text) _Pragma(#    text)
#    define TIFFIN_UNROLL(count) TIFFIN_PRAGMA(GCC unroll count)
#endif

TIFFIN_BEGIN

namespace simd_detail {

template <class Arch>
struct named_arch {
    using type = Arch;
};
template <>
struct named_arch<default_arch> {
    using type = xsimd::default_arch;
};
// The instruction set as xsimd names it.
template <class Arch>
using xsimd_arch = typename named_arch<Arch>::type;

template <class Arch>
using lanes = xsimd::batch<float, Arch>;

template <class Arch>
using int_lanes = xsimd::batch<std::int32_t, Arch>;

template <class Arch>
inline constexpr std::size_t width = lanes<Arch>::size;

// a b + c with one rounding where the machine can. xsimd 8 has no AVX-512 overload of its fma and leaves
// a product and a sum, which clang does not fuse.
template <class Arch>
lanes<Arch> multiply_add(const lanes<Arch>& a, const lanes<Arch>& b, const lanes<Arch>& c) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::is_base_of_v<xsimd::avx512f, Arch>) return _mm512_fmadd_ps(a, b, c);
#endif
    return xsimd::fma(a, b, c);
}

// Keeps a sum in its register. Without it g++ 12 renames the sums of a tile at every step, and both it and
// clang compute many products ahead, until registers are spilled: on AVX2 a tile of 4 tokens took 1.5 times
// as long.
template <class Register>
[[gnu::always_inline]] inline void pin([[maybe_unused]] Register& sum) noexcept {
#if defined(__AVX512F__)
    __asm__ volatile("" : "+v"(sum));
#elif defined(__SSE__)
    __asm__ volatile("" : "+x"(sum));
#elif defined(__aarch64__)
    __asm__ volatile("" : "+w"(sum));
#endif
}

// from[i] at any alignment.
template <class Storage>
Storage stored_at(const Storage* from, std::size_t i) noexcept {
    Storage stored;
    std::memcpy(&stored, from + i, sizeof stored);
    return stored;
}

// One register of values at any alignment, decoded.
template <codec Format, class Arch>
    requires(Format::block == 1)
lanes<Arch> load_all(const typename Format::storage* from)
noexcept {
    if constexpr (std::same_as<Format, f32>) {
        return lanes<Arch>::load_unaligned(from);
    } else {
#if defined(__AVX512F__)
        if constexpr (std::same_as<Format, bf16> && std::is_base_of_v<xsimd::avx512f, Arch>)
            return _mm512_castsi512_ps(_mm512_slli_epi32(
                _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16));
        else if constexpr (std::same_as<Format, f16> && std::is_base_of_v<xsimd::avx512f, Arch>)
            return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        else
#elif defined(__AVX2__)
        if constexpr (std::same_as<Format, bf16> && std::is_base_of_v<xsimd::avx2, Arch>)
            return _mm256_castsi256_ps(_mm256_slli_epi32(
                _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16));
        else
#    if defined(__F16C__)
            if constexpr (std::same_as<Format, f16> && std::is_base_of_v<xsimd::avx2, Arch>)
            return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        else
#    endif
#endif
        {
            alignas(64) float part[width<Arch>];
            for (std::size_t i = 0; i < width<Arch>; ++i) Format::decode(stored_at(from, i), part + i);
            return lanes<Arch>::load_aligned(part);
        }
    }
}

// One register from `count` stored values; the missing lanes are 0.
template <codec Format, class Arch>
lanes<Arch> load(const typename Format::storage* from, std::size_t count) noexcept {
    if (count >= width<Arch>) [[likely]]
        return load_all<Format, Arch>(from);
    alignas(64) float part[width<Arch>] = {};
    for (std::size_t i = 0; i < count; ++i) Format::decode(stored_at(from, i), part + i);
    return lanes<Arch>::load_aligned(part);
}

// Signed bytes as f32.
template <class Arch>
lanes<Arch> widen(const std::int8_t* from) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::is_base_of_v<xsimd::avx512f, Arch>)
        return _mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    else
#elif defined(__AVX2__)
    if constexpr (std::is_base_of_v<xsimd::avx2, Arch>)
        return _mm256_cvtepi32_ps(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
    else
#endif
    {
        alignas(64) float part[width<Arch>];
        for (std::size_t i = 0; i < width<Arch>; ++i) part[i] = static_cast<float>(from[i]);
        return lanes<Arch>::load_aligned(part);
    }
}

// The 4 bits of each byte from bit Shift on, less Bias, as f32.
template <class Arch, int Shift, int Bias>
lanes<Arch> widen_nibbles(const std::uint8_t* from) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::is_base_of_v<xsimd::avx512f, Arch>) {
        const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        const __m512i bits = _mm512_and_si512(_mm512_srli_epi32(wide, Shift), _mm512_set1_epi32(15));
        return _mm512_cvtepi32_ps(_mm512_sub_epi32(bits, _mm512_set1_epi32(Bias)));
    } else
#elif defined(__AVX2__)
    if constexpr (std::is_base_of_v<xsimd::avx2, Arch>) {
        const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
        const __m256i bits = _mm256_and_si256(_mm256_srli_epi32(wide, Shift), _mm256_set1_epi32(15));
        return _mm256_cvtepi32_ps(_mm256_sub_epi32(bits, _mm256_set1_epi32(Bias)));
    } else
#endif
    {
        alignas(64) float part[width<Arch>];
        for (std::size_t i = 0; i < width<Arch>; ++i)
            part[i] = static_cast<float>((from[i] >> Shift & 15) - Bias);
        return lanes<Arch>::load_aligned(part);
    }
}

// Stores the first `count` lanes of a register at any alignment.
template <class Arch>
void store(const lanes<Arch>& from, float* to, std::size_t count) noexcept {
    if (count >= width<Arch>) [[likely]] {
        from.store_unaligned(to);
    } else {
        alignas(64) float part[width<Arch>];
        from.store_aligned(part);
        std::memcpy(to, part, count * sizeof(float));
    }
}

// Applies a formula to registers: with registers where it accepts them, else lane by lane with floats.
template <class Arch, class Formula, class... Registers>
lanes<Arch> apply(const Formula& formula, const Registers&... in) {
    if constexpr (requires {
                      { formula(in...) } -> std::convertible_to<lanes<Arch>>;
                  }) {
        return formula(in...);
    } else {
        alignas(64) float parts[sizeof...(in)][width<Arch>];
        alignas(64) float out[width<Arch>];
        std::size_t n = 0;
        (in.store_aligned(parts[n++]), ...);
        for (std::size_t i = 0; i < width<Arch>; ++i)
            out[i] = [&]<std::size_t... P>(std::index_sequence<P...>) {
                return static_cast<float>(formula(parts[P][i]...));
            }
        (std::index_sequence_for<Registers...>{});
        return lanes<Arch>::load_aligned(out);
    }
}

}  // namespace simd_detail

TIFFIN_END
