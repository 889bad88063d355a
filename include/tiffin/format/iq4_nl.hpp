#pragma once

#include <tiffin/format/f16.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace detail {

// The 16 levels of IQ4_NL and IQ4_XS: denser around 0.
inline constexpr std::array<std::int8_t, 16> iq4_levels{
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};

}  // namespace detail

// ggml's IQ4_NL, read only: blocks of 32 values, an f16 scale d and 32 codes q of 4 bits. x = d level[q].
// Byte i holds codes i (low bits) and i + 16. Shapes: the last axis is a multiple of 32.
// Numerics: 4.5 bits per value; exact in f32.
struct iq4_nl {
    struct storage {
        std::uint16_t scale = 0;  // f16
        std::array<std::uint8_t, 16> pairs{};
    };
    static constexpr dtype type = dtype::iq4_nl;
    static constexpr std::size_t block = 32;

    static constexpr std::array<std::uint16_t, 1> scales(const storage& s) noexcept { return {{s.scale}}; }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s{0x3C00, {}};  // 1, as is level 8
        s.pairs.fill(0x88);
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale);
        for (std::size_t i = 0; i < 16; ++i) {
            numbers[i] = scale * detail::iq4_levels[from.pairs[i] & 15];
            numbers[i + 16] = scale * detail::iq4_levels[from.pairs[i] >> 4];
        }
    }
};
static_assert(sizeof(iq4_nl::storage) == 18);

TIFFIN_END
