// The concepts of number formats: storage, rounding, quantised integers times scales.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/format/paired.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

struct any_format;

// How values are stored, `block` of them together along a tensor's last axis; `block` divides 256. `decode` widens a
// block. ones(), optional, is a block of exactly 1, where encode() does not make one.
template <class F>
concept stored_format = requires(const typename F::storage& from, float* out) {
    { F::block } -> std::convertible_to<std::size_t>;
    F::decode(from, out);
}
&&256 % F::block == 0;

// A format that values can be rounded to: `encode` rounds a block, of magnitudes up to `largest`. `round(from, to)`,
// optional, rounds a block of activations, which are not stored and so have no `largest`.
template <class F>
concept codec = stored_format<F> && requires(const float* numbers, typename F::storage& to) {
    { F::largest } -> std::convertible_to<float>;
    F::encode(numbers, to);
};

// A format of quantised integers (codes, called levels) times scales: x = d (level - zero), or x = d level + l, l a
// minimum. Its products with q8_0 activations are integer dot products.
//   level_bits          4, 5 or 6, unsigned; or 8, signed;
//   zero                the level that represents 0, where there is no minimum;
//   part                inputs that share d (and l): 32 or 16;
//   scales(block)       the f16 scales of a block, an array: d, or d and l;
//   levels(block, p, to)   writes the levels of its values [32 p, 32 p + 32) as bytes;
//   factor(block, kind, part)   in blocks of several parts: the multiplier of scales(block)[kind] in a part,
//                               a signed byte.
template <class F>
concept quantised_format = stored_format<F> && requires(const typename F::storage& from, std::uint8_t* to) {
    { F::level_bits } -> std::convertible_to<int>;
    { F::zero } -> std::convertible_to<int>;
    { F::part } -> std::convertible_to<std::size_t>;
    F::scales(from);
    F::levels(from, std::size_t{}, to);
};

// A codec, or any_format.
template <class F>
concept format_policy = codec<F> || std::same_as<F, any_format>;

// How activations are kept between products: a codec, or paired, which depends on the weights' format.
template <class F>
concept activation_format = codec<F> || std::same_as<F, paired>;

TIFFIN_END
