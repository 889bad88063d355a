// Registers of f32 and the partial ones at the end of a row.
#pragma once

#include <tiffin/concepts.hpp>
#include <tiffin/format/f32.hpp>

#include <xsimd/xsimd.hpp>

#include <concepts>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace simd_detail {

template <class Arch>
using lanes = xsimd::batch<float, Arch>;

template <class Arch>
inline constexpr std::size_t width = lanes<Arch>::size;

// a b + c with one rounding where the machine can. xsimd 8 has no AVX-512 overload of its fma and leaves
// a product and a sum, which clang does not join.
template <class Arch>
lanes<Arch> multiply_add(const lanes<Arch>& a, const lanes<Arch>& b, const lanes<Arch>& c) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::is_base_of_v<xsimd::avx512f, Arch>) return _mm512_fmadd_ps(a, b, c);
#endif
    return xsimd::fma(a, b, c);
}

// A register from `count` stored numbers of any alignment; the missing ones are 0.
template <format_policy Format, class Arch>
lanes<Arch> load(const typename Format::storage* from, std::size_t count) noexcept {
    if constexpr (std::same_as<Format, f32>) {
        if (count >= width<Arch>) [[likely]]
            return lanes<Arch>::load_unaligned(from);
        alignas(64) float part[width<Arch>] = {};
        std::memcpy(part, from, count * sizeof(float));
        return lanes<Arch>::load_aligned(part);
    } else {
        alignas(64) float part[width<Arch>] = {};
        for (std::size_t i = 0; i < width<Arch> && i < count; ++i) part[i] = Format::load(from[i]);
        return lanes<Arch>::load_aligned(part);
    }
}

// Stores the first `count` numbers of a register at any alignment.
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

// A formula over registers, called with registers where it can be and lane by lane where it is
// written for plain numbers only.
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
