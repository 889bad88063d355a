#pragma once

#include <tiffin/format/iq4_nl.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// ggml's IQ4_XS, read only: blocks of 256 values in 8 parts of 32 as in iq4_nl, each with a scale s of 6 bits (the low
// four in pairs, the high two in a word of 16 bits); an f16 scale d of these. x = (d (s - 32)) level[q].
// Shapes: the last axis is a multiple of 256. Numerics: 4.25 bits per value; exact in f32.
struct iq4_xs {
    struct storage {
        std::uint16_t scale = 0;  // f16
        std::uint16_t high = 0;
        std::array<std::uint8_t, 4> low{};
        std::array<std::uint8_t, 128> pairs{};
    };
    static constexpr dtype type = dtype::iq4_xs;
    static constexpr std::size_t block = 256;

    static constexpr std::array<std::uint16_t, 1> scales(const storage& s) noexcept { return {{s.scale}}; }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s;
        s.scale = 0xA800;  // -1 / 32: parts are -32, level 8 is 1
        s.pairs.fill(0x88);
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale);
        for (std::size_t part = 0; part < 8; ++part) {
            const int of_part = (from.low[part / 2] >> part % 2 * 4 & 15) | (from.high >> part * 2 & 3) << 4;
            const float step = scale * static_cast<float>(of_part - 32);
            for (std::size_t i = 0; i < 16; ++i) {
                const int pair = from.pairs[part * 16 + i];
                numbers[part * 32 + i] = step * detail::iq4_levels[static_cast<std::size_t>(pair & 15)];
                numbers[part * 32 + i + 16] = step * detail::iq4_levels[static_cast<std::size_t>(pair >> 4)];
            }
        }
    }
};
static_assert(sizeof(iq4_xs::storage) == 136);

TIFFIN_END
