// Dot products of small integers, one register of outputs at a time.
#pragma once

#include <tiffin/cpu/simd/integer_dot_arm.hpp>
#include <tiffin/cpu/simd/integer_dot_x86.hpp>
#include <tiffin/cpu/simd/lanes.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

TIFFIN_BEGIN

namespace simd_detail {

// Weights are stored in groups: an output's bytes of `group` inputs, followed by those of the next output.
// An integer_dot has
//   group         inputs whose products one instruction sums;
//   instructions  that add a group's products to a sum;
//   input         the type of its activations;
//   stored_bias   what packing adds to a byte of 8 bits, 0 or 128; it is still included in the products;
//   weights       a register of groups, load<Half>(bytes) from packed ones. Half 1: the high 4 bits;
//                 join<Left, Mask>(weights, bytes): adds the high bits of weights of fewer than 8, which are
//                 `bytes` shifted left (right where Left is negative) and masked by Mask;
//   sums          sums of a register of outputs, begin(offset); add(sums, weights, inputs) adds one group's products;
//   total(sums, offset)   the sums of a part, and their initial offset, as 32-bit integers.
// All sums are exact: at most 32 products of magnitude 2^15. An instruction set with a dot of its own overloads
// machine_dot(instruction set, integral_constant<int, bits>).

// A register as a compiler's vector type. From arrays g++ takes 5 times as long to find the same instructions.
template <class Number, std::size_t Lanes>
struct compilers_register {
    typedef Number type __attribute__((vector_size(sizeof(Number) * Lanes)));
};

// One input at a time, for instruction sets without a dot product of integers.
template <class Arch, int Bits>
struct portable_dot {
    static constexpr std::size_t lane_count = width<Arch>;
    static constexpr std::size_t group = 1, instructions = 2;
    static constexpr int stored_bias = 0;
    using input = std::int16_t;
    using weights = typename compilers_register<std::int16_t, lane_count>::type;
    using sums = typename compilers_register<std::int32_t, lane_count>::type;

    template <int Half>
    static weights load(const std::byte* from) noexcept {
        if constexpr (Bits == 8)
            return read<std::int8_t>(from);
        else
            return read<std::uint8_t>(from) >> 4 * Half & 15;
    }
    template <int Left, int Mask>
    static weights join(weights low, const std::byte* high) noexcept {
        if constexpr (Left < 0)
            return low | (read<std::uint8_t>(high) >> -Left & Mask);
        else
            return low | (read<std::uint8_t>(high) << Left & Mask);
    }
    static sums begin(std::int32_t offset) noexcept { return sums{} + offset; }
    static void add(sums& to, weights w, const input* x) noexcept {
        to += __builtin_convertvector(w, sums) * std::int32_t{*x};
    }
    static int_lanes<Arch> total(sums of, std::int32_t) noexcept {
        alignas(sums) std::int32_t lanes[lane_count];
        std::memcpy(lanes, &of, sizeof lanes);
        return int_lanes<Arch>::load_aligned(lanes);
    }

private:
    template <class Byte>
    static weights read(const std::byte* from) noexcept {
        typename compilers_register<Byte, lane_count>::type bytes;
        std::memcpy(&bytes, from, sizeof bytes);
        return __builtin_convertvector(bytes, weights);
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
