// Sums of products of small whole numbers, a register of outputs at a time.
#pragma once

#include <tiffin/cpu/simd/integer_dot_arm.hpp>
#include <tiffin/cpu/simd/integer_dot_x86.hpp>
#include <tiffin/cpu/simd/lanes.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

TIFFIN_BEGIN

namespace simd_detail {

// Weights come in groups: an output's bytes of `group` inputs, beside those of the next output.
// An integer_dot has
//   group         inputs that an instruction joins to a sum;
//   instructions  that add a group's products to a sum;
//   input         what it wants activations as;
//   stored_bias   what is added to a byte of 8 bits when it is packed, 0 or 128, and is in it as it is multiplied;
//   weights       a register of groups, load<Half>(bytes) from packed ones. Half 1: the high 4 bits;
//                 join<Left, Mask>(weights, bytes): of fewer than 8 bits, with those of other bytes that Mask keeps of
//                 them once they are shifted to the left (to the right where Left is negative);
//   sums          sums of a register of outputs, begin(offset); add(sums, weights, inputs) adds one group's products;
//   total(sums, offset)   the sums of a part, and the offset that they began with, as 32-bit numbers.
// All sums are exact: at most 32 products of magnitude 2^15. machine_dot(instruction set, integral_constant<int, bits>)
// is the one of a set that has its own.

// Plain numbers, one input at a time, for the compiler to find instructions for.
template <class Arch, int Bits>
struct portable_dot {
    static constexpr std::size_t lane_count = width<Arch>;
    static constexpr std::size_t group = 1, instructions = 2;
    static constexpr int stored_bias = 0;
    using input = std::int16_t;
    using weights = std::array<std::int16_t, lane_count>;
    using sums = std::array<std::int32_t, lane_count>;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        weights to;
        for (std::size_t i = 0; i < lane_count; ++i)
            to[i] = Bits == 8 ? static_cast<std::int8_t>(from[i])
                              : static_cast<std::int16_t>(std::to_integer<int>(from[i]) >> 4 * Half & 15);
        return to;
    }
    template <int Left, int Mask>
    static weights join(weights low, const std::byte* high) noexcept {
        for (std::size_t i = 0; i < lane_count; ++i) {
            const int bits = std::to_integer<int>(high[i]);
            low[i] = static_cast<std::int16_t>(
                low[i] |
                ((Left < 0 ? bits >> (Left < 0 ? -Left : 0) : bits << (Left < 0 ? 0 : Left)) & Mask));
        }
        return low;
    }
    static sums begin(std::int32_t offset) noexcept {
        sums to;
        to.fill(offset);
        return to;
    }
    static void add(sums& to, const weights& w, const input* x) noexcept {
        for (std::size_t i = 0; i < lane_count; ++i) to[i] += std::int32_t{w[i]} * *x;
    }
    static whole_lanes<Arch> total(const sums& of, std::int32_t) noexcept {
        return whole_lanes<Arch>::load_unaligned(of.data());
    }
};

template <class Arch, int Bits>
auto choose_integer_dot() {
    using bits = std::integral_constant<int, Bits>;
    if constexpr (requires { machine_dot(Arch{}, bits{}); })
        return machine_dot(Arch{}, bits{});
    else
        return portable_dot<Arch, Bits>{};
}
template <class Arch, int Bits>
using integer_dot = decltype(choose_integer_dot<Arch, Bits>());

}  // namespace simd_detail

TIFFIN_END
