#pragma once

#include <tiffin/format/f16.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace detail {

// The scales and minima, of 6 bits, of eight parts of a block: those of the first four in the low bits of bytes 0 to
// 7, those of the last four in pairs in bytes 8 to 11, their high bits in the high bits of the first.
struct k_parts {
    std::array<std::uint8_t, 12> bytes{};

    [[nodiscard]] constexpr int scale(std::size_t part) const noexcept {
        return part < 4 ? bytes[part] & 63 : (bytes[part + 4] & 15) | bytes[part - 4] >> 6 << 4;
    }
    [[nodiscard]] constexpr int least(std::size_t part) const noexcept {
        return part < 4 ? bytes[part + 4] & 63 : bytes[part + 4] >> 4 | bytes[part] >> 6 << 4;
    }
    [[nodiscard]] constexpr int factor(std::size_t kind, std::size_t part) const noexcept {
        return kind == 0 ? scale(part) : -least(part);
    }
    // Writes (d s) q - (d_min m) for level(part, i) = the code of value i of 32 of each part.
    template <class Level>
    constexpr void decode(std::uint16_t d, std::uint16_t d_min, const Level& level,
                          float* numbers) const noexcept {
        for (std::size_t part = 0; part < 8; ++part) {
            const float step = f16_to_f32(d) * static_cast<float>(scale(part));
            const float first = f16_to_f32(d_min) * static_cast<float>(least(part));
            for (std::size_t i = 0; i < 32; ++i)
                *numbers++ = step * static_cast<float>(level(part, i)) - first;
        }
    }
};

}  // namespace detail

// ggml's Q4_K, read only: blocks of 256 codes q of 4 bits in 8 parts, each with a scale s and a minimum m of 6
// bits; f16 scales d and d_min of these. x = (d s) q - (d_min m).
// Byte i of 32 bytes holds codes i (low bits) and i + 32 of 64. Shapes: the last axis is a multiple of 256.
// Numerics: 4.5 bits per value; the products are exact in f32, the difference rounds once, as in ggml.
struct q4_k {
    struct storage {
        std::uint16_t scale = 0, least = 0;  // f16
        detail::k_parts parts{};
        std::array<std::uint8_t, 128> pairs{};
    };
    static constexpr dtype type = dtype::q4_k;
    static constexpr std::size_t block = 256;

    static constexpr int level_bits = 4, zero = 0;
    static constexpr std::size_t part = 32;

    static constexpr std::array<std::uint16_t, 2> scales(const storage& s) noexcept {
        return {{s.scale, s.least}};
    }
    static constexpr int factor(const storage& s, std::size_t kind, std::size_t i) noexcept {
        return s.parts.factor(kind, i);
    }
    static constexpr void levels(const storage& s, std::size_t p, std::uint8_t* to) noexcept {
        for (std::size_t i = 0; i < 32; ++i) to[i] = s.pairs[p / 2 * 32 + i] >> p % 2 * 4 & 15;
    }
    // A block of ones, exact.
    static constexpr storage ones() noexcept {
        storage s;
        s.least = 0xBC00;  // -1, once in each part
        s.parts.bytes = {0, 0, 0, 0, 1, 1, 1, 1, 0x10, 0x10, 0x10, 0x10};
        return s;
    }
    static constexpr void decode(const storage& from, float* numbers) noexcept {
        const auto level = [&](std::size_t part, std::size_t i) {
            return (from.pairs[part / 2 * 32 + i] >> part % 2 * 4 & 15);
        };
        from.parts.decode(from.scale, from.least, level, numbers);
    }
};
static_assert(sizeof(q4_k::storage) == 144);

TIFFIN_END
