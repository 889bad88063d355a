// The layout of a training product's factors for the tile kernels of a number format, from rows and panels of f32.
#pragma once

#include <tiffin/cpu/simd/weight_kernels.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace train_detail {

// f32: the tile kernels read rows and panels without conversion.
template <class Format>
struct factor_layout {
    using storage = float;
    static constexpr bool rounds = false;
    static void round_row(const float*, std::size_t, storage*) noexcept {}
    static void round_panel(const float*, std::size_t, std::size_t, storage*) noexcept {}
};

// bf16: rounded, two consecutive k side by side (bf16_panel); an odd last one is paired with 0.
template <>
struct factor_layout<bf16> {
    using storage = bf16::storage;
    static constexpr bool rounds = true;

    // To nearest even, also to infinity. NaN stays NaN: its low bits may be lost, so the quiet bit is set.
    static std::uint32_t rounded(float value) noexcept {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t nearest = bits + 0x7FFFu + ((bits >> 16) & 1u);
        return (bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 0x40u : nearest >> 16;
    }
    static void round_row(const float* from, std::size_t depth, storage* to) noexcept {
        for (std::size_t k = 0; k < depth; ++k) to[k] = static_cast<storage>(rounded(from[k]));
        if (depth % 2 != 0) to[depth] = 0;
    }
    // A panel (depth, outputs).
    static void round_panel(const float* from, std::size_t depth, std::size_t outputs, storage* to) noexcept {
        auto* const pairs = reinterpret_cast<std::uint32_t*>(to);
        std::size_t k = 0;
        for (; k + 1 < depth; k += 2)
            for (std::size_t j = 0; j < outputs; ++j)
                pairs[k / 2 * outputs + j] =
                    rounded(from[k * outputs + j]) | rounded(from[(k + 1) * outputs + j]) << 16;
        for (std::size_t j = 0; k < depth && j < outputs; ++j)
            pairs[k / 2 * outputs + j] = rounded(from[k * outputs + j]);
    }
};

}  // namespace train_detail

TIFFIN_END
