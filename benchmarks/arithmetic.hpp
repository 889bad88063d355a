// The kinds of arithmetic that products of weights and activations are made of.
#pragma once

#include <array>
#include <cstddef>

namespace tiffin_bench {

// What multiplies a weight with an activation: multiply-adds of f32; sums of two products of bf16; sums of
// products of 8 bits or fewer. A multiply-add counts as two operations in each.
enum class arithmetic { f32, bf16_dot, int8_dot };
inline constexpr std::size_t arithmetic_kinds = 3;
inline constexpr std::array<const char*, arithmetic_kinds> arithmetic_names{{"f32", "bf16_dot", "int8_dot"}};

// The operations a second of one kind that `threads` OpenMP threads do together, in one try of about half a
// millisecond, with the instruction that the kernels of `simd` have for it in the instruction set that
// arithmetic.cpp was compiled for:
//     2 * multiply-adds of a step * chains * steps / seconds, summed over the threads,
// for steps that never leave the registers, in more independent chains than latency * ports. All threads run
// at once, since clock rates fall as cores and wide units wake.
//
// Where the process may use the tile registers of AMX: products of full tiles of bf16 or bytes.
//
// Without an instruction for pairs of bf16 these are multiplied in f32, at the rate of that. Without one for
// bytes, pairs of bytes are joined to 16 bits and added there, as for weights of 4 bits: those of 8 need more
// instructions. Where there is neither (no AVX2), the rate is that of f32.
double measure_operations_per_second(arithmetic kind, int threads);

}  // namespace tiffin_bench
