#pragma once

#include <tiffin/format/f8.hpp>
#include <tiffin/format/mxfp4.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

// NVFP4 as ggml lays it out, read only: blocks of 64 codes of 4 bits (E2M1, as in MXFP4) and four scales, E4M3 without a
// sign, of 16 values each. Byte i of the 8 bytes of a scale holds codes i (low bits) and i + 8. A factor for the whole
// tensor usually accompanies it (see format/scales.hpp).
// Shapes: the last axis is a multiple of 64. Numerics: 4.5 bits per value; exact in f32. A scale of 0x7F is 0, as in ggml.
struct nvfp4 {
    struct storage {
        std::array<std::uint8_t, 4> scales{};
        std::array<std::uint8_t, 32> pairs{};
    };
    static constexpr dtype type = dtype::nvfp4;
    static constexpr std::size_t block = 64;

    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s;
        s.scales.fill(f8_e4m3::ones());
        s.pairs.fill(0x22);
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        for (std::size_t i = 0; i < 64; ++i) {
            const std::size_t part = i / 16, inside = i % 16;
            float scale = 0;
            if (from.scales[part] != 0x7F) f8_e4m3::decode(from.scales[part] & 0x7F, &scale);
            const unsigned pair = from.pairs[8 * part + inside % 8];
            numbers[i] = scale * 0.5f * mxfp4::doubled[inside < 8 ? pair & 15 : pair >> 4];
        }
    }
};
static_assert(sizeof(nvfp4::storage) == 36);

TIFFIN_END
