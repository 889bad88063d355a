// The fused CPU kernel over xsimd registers.
#pragma once

#include <tiffin/backend/fused/engine.hpp>
#include <tiffin/backend/simd/machine.hpp>

TIFFIN_BEGIN

// Weights packed once into panels, two fused passes: the hidden values, then the output.
//
// Numerics: f32 sums, one accumulator an output, k ascending, fused multiply-add where the machine
//   has it. A token's output is the same to the bit whatever its batch, the number of threads and
//   the pieces a call runs in; it differs between instruction sets.
// Cost: reads each packed weight once a call of up to a few hundred tokens, and the rows of the call's
//   own tokens; two hand-overs to the executor, three with a norm or more than one token.
// Weights, Tables: the number formats that packed weights and tables are kept in: f32, bf16, f16, q8_0,
//   q4_0, a codec of your own, or any_format. Stored numbers are widened exactly and computed with in f32:
//   a layer gives what `simd<>` gives with the widened weights, to the bit. Routers, the outer half of a
//   low-rank bank, norms, biases and scales stay f32.
template <format_policy Weights = f32, format_policy Tables = f32, class Arch = xsimd::default_arch>
struct simd {
    template <block_policy Block>
    using engine = fused_detail::engine_of<simd_detail::machine<Weights, Tables, Arch>, Block>;

    Weights weights;  // tell the formats where they are any_format
    Tables tables;

    [[nodiscard]] constexpr number_formats formats() const { return {describe(weights), describe(tables)}; }
};

TIFFIN_END
