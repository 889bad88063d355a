// Conversion of blocks between number formats without requantisation.
#pragma once

#include <tiffin/format/given_format.hpp>

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

TIFFIN_BEGIN

namespace detail {

template <class Storage>
Storage block_at(const void* data, std::size_t i) noexcept {
    Storage block;
    std::memcpy(&block, static_cast<const unsigned char*>(data) + i * sizeof block, sizeof block);
    return block;
}

// Codes of at most 8 bits times an f16 scale: exact.
template <class Level>
bool repack_levels(std::uint16_t scale, const Level& level, q8_0::storage& to) noexcept {
    to.scale = scale;
    for (std::size_t i = 0; i < q8_0::block; ++i) to.values[i] = static_cast<std::int8_t>(level(i));
    return is_finite_f16(scale);
}
inline int level_of_pairs(const std::array<std::uint8_t, 16>& pairs, std::size_t i) noexcept {
    return i < 16 ? pairs[i] & 15 : pairs[i - 16] >> 4;
}
// The scale is a power of two, which f16 represents unless it is too large or too small.
inline bool repack(const mxfp4::storage& from, q8_0::storage& to) noexcept {
    std::array<float, mxfp4::block> numbers;
    mxfp4::decode(from, numbers.data());
    const float half = std::bit_cast<float>(std::uint32_t{from.exponent} << 23) / 2;
    const std::uint16_t scale = f32_to_f16(half);
    if (f16_to_f32(scale) != half || scale == 0) return false;
    return repack_levels(
        scale, [&](std::size_t i) { return numbers[i] / half; }, to);
}

// One part, an eighth of a block: only the products of its scales are rounded, to f16.
inline bool repack(const q4_k::storage& from, std::size_t part, q4_1::storage& to) noexcept {
    to.scale = f32_to_f16(f16_to_f32(from.scale) * static_cast<float>(from.parts.scale(part)));
    to.least = f32_to_f16(-f16_to_f32(from.least) * static_cast<float>(from.parts.least(part)));
    const auto level = [&](std::size_t i) { return from.pairs[part / 2 * 32 + i] >> part % 2 * 4 & 15; };
    for (std::size_t i = 0; i < 16; ++i)
        to.pairs[i] = static_cast<std::uint8_t>(level(i) | level(i + 16) << 4);
    return is_finite_f16(to.scale) && is_finite_f16(to.least);
}

}  // namespace detail

// Converts the block of values [first, first + 32) of `data` to another format with the same codes and scales: Q8_0
// from Q4_0, Q5_0, IQ4_NL and MXFP4, exactly; Q4_1 from Q4_0, exactly; Q4_1 from Q4_K with its scale and minimum
// rounded to f16, a relative error of at most 2^-11 each.
// Returns false, with `to` unspecified, where there is no such conversion: the caller then encodes the values.
// Precondition: first is a multiple of 32.
template <class To>
bool repack([[maybe_unused]] const void* data, [[maybe_unused]] dtype type,
            [[maybe_unused]] std::size_t first, [[maybe_unused]] typename To::storage& to) noexcept {
    [[maybe_unused]] const std::size_t i = first / 32;
    if constexpr (std::same_as<To, q8_0>) {
        if (type == dtype::q4_0) {
            const auto from = detail::block_at<q4_0::storage>(data, i);
            return detail::repack_levels(
                from.scale, [&](std::size_t k) { return detail::level_of_pairs(from.pairs, k) - 8; }, to);
        }
        if (type == dtype::q5_0) {
            const auto from = detail::block_at<q5_0::storage>(data, i);
            return detail::repack_levels(
                from.scale, [&](std::size_t k) { return from.levels[k] - 16; }, to);
        }
        if (type == dtype::iq4_nl) {
            const auto from = detail::block_at<iq4_nl::storage>(data, i);
            return detail::repack_levels(
                from.scale,
                [&](std::size_t k) {
                    return detail::iq4_levels[static_cast<std::size_t>(
                        detail::level_of_pairs(from.pairs, k))];
                },
                to);
        }
        if (type == dtype::mxfp4) return detail::repack(detail::block_at<mxfp4::storage>(data, i), to);
    } else if constexpr (std::same_as<To, q4_1>) {
        if (type == dtype::q4_0) {
            const auto from = detail::block_at<q4_0::storage>(data, i);
            to = {from.scale, f32_to_f16(-8 * f16_to_f32(from.scale)), from.pairs};
            return detail::is_finite_f16(to.least);
        }
        if (type == dtype::q4_k)
            return detail::repack(detail::block_at<q4_k::storage>(data, first / 256), first % 256 / 32, to);
    }
    return false;
}

TIFFIN_END
