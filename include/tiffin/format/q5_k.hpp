#pragma once

#include <tiffin/format/q4_k.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// ggml's Q5_K, read only: q4_k with a fifth bit, that of number i in bit i / 32 of byte i % 32 of `high`.
// Shapes: the last axis is a multiple of 256. Numerics: 5.5 bits per number; as q4_k.
struct q5_k {
    struct storage {
        std::uint16_t scale = 0, least = 0;  // f16
        detail::k_parts parts{};
        std::array<std::uint8_t, 32> high{};
        std::array<std::uint8_t, 128> pairs{};
    };
    static constexpr dtype type = dtype::q5_k;
    static constexpr std::size_t block = 256;

    static constexpr std::array<std::uint16_t, 2> scales(const storage& s) noexcept {
        return {{s.scale, s.least}};
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const float scale = f16_to_f32(from.scale), least = f16_to_f32(from.least);
        for (std::size_t part = 0; part < 8; ++part) {
            const float step = scale * static_cast<float>(from.parts.scale(part));
            const float first = least * static_cast<float>(from.parts.least(part));
            for (std::size_t i = 0; i < 32; ++i) {
                const int level =
                    (from.pairs[part / 2 * 32 + i] >> part % 2 * 4 & 15) | (from.high[i] >> part & 1) << 4;
                numbers[part * 32 + i] = step * static_cast<float>(level) - first;
            }
        }
    }
};
static_assert(sizeof(q5_k::storage) == 176);

TIFFIN_END
