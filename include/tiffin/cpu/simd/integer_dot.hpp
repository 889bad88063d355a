// Sums of products of small whole numbers, a register of outputs at a time.
#pragma once

#include <tiffin/cpu/simd/integer_dot_arm.hpp>
#include <tiffin/cpu/simd/integer_dot_x86.hpp>
#include <tiffin/cpu/simd/lanes.hpp>
#include <tiffin/format/q4_0.hpp>
#include <tiffin/format/q4_1.hpp>
#include <tiffin/format/q8_0.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

TIFFIN_BEGIN

namespace simd_detail {

// Weights come in groups: an output's bytes of `group` inputs, beside those of the next output.
// An integer_dot has
//   group         inputs that an instruction joins to a sum;
//   input         what it wants activations as;
//   bias          how much a weight within it exceeds the number stored, which the caller takes off;
//   stored_bias   what is added to a stored byte when it is packed (modulo 256);
//   weights       a register of groups, load<Half>(bytes) from packed ones. Half 1: the high 4 bits;
//   sums          sums of a register of outputs; add(sums, weights, inputs) adds one group's products;
//   total(sums)   the sums of a whole block as f32.
// All sums are exact: at most 32 products of magnitude 2^15. machine_dot(instruction set, bool_constant<4
// bits>) is the one of a set that has its own.

// Plain numbers, one input at a time, for the compiler to find instructions for.
template <class Arch, bool Nibbles>
struct portable_dot {
    static constexpr std::size_t lane_count = width<Arch>;
    static constexpr std::size_t group = 1;
    static constexpr int bias = Nibbles ? 8 : 0;
    static constexpr int stored_bias = 0;
    using input = std::int16_t;
    using weights = std::array<std::int16_t, lane_count>;
    using sums = std::array<std::int32_t, lane_count>;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        weights to;
        for (std::size_t i = 0; i < lane_count; ++i)
            to[i] = Nibbles ? static_cast<std::int16_t>(std::to_integer<int>(from[i]) >> 4 * Half & 15)
                            : static_cast<std::int8_t>(from[i]);
        return to;
    }
    static void add(sums& to, const weights& w, const input* x) noexcept {
        for (std::size_t i = 0; i < lane_count; ++i) to[i] += std::int32_t{w[i]} * *x;
    }
    static lanes<Arch> total(const sums& of) noexcept {
        alignas(64) float numbers[lane_count];
        for (std::size_t i = 0; i < lane_count; ++i) numbers[i] = static_cast<float>(of[i]);
        return lanes<Arch>::load_aligned(numbers);
    }
};

template <class Arch, codec Weights>
auto choose_integer_dot() {
    using nibbles = std::bool_constant<std::same_as<Weights, q4_0> || std::same_as<Weights, q4_1>>;
    if constexpr (requires { machine_dot(Arch{}, nibbles{}); })
        return machine_dot(Arch{}, nibbles{});
    else
        return portable_dot<Arch, nibbles::value>{};
}

// Of weights that begin at a least number: nothing is to be taken off, but the sum of the inputs is asked for, which
// that number is multiplied with.
template <class Dot>
struct from_least : Dot {
    static constexpr int bias = -1;
};

template <class Arch, codec Weights>
using integer_dot =
    std::conditional_t<std::same_as<Weights, q4_1>, from_least<decltype(choose_integer_dot<Arch, Weights>())>,
                       decltype(choose_integer_dot<Arch, Weights>())>;

}  // namespace simd_detail

TIFFIN_END
