// The simd backend's interface: its guarantees and its number formats. The kernels are in simd.hpp.
#pragma once

#include <tiffin/format/any_format.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/format/paired.hpp>
#include <tiffin/grammar/concepts.hpp>

#include <concepts>
#include <cstddef>

TIFFIN_BEGIN

namespace cpu_detail {

template <class Machine, block_policy Block>
class engine;

}  // namespace cpu_detail

namespace simd_detail {

// xsimd::default_arch, named without xsimd's headers: a file that only links the compiled kernels includes none.
struct default_arch;

// Arch: an instruction set of xsimd, or default_arch.
template <class Arch>
struct machine;
// Defined with the kernels, see simd.hpp.
template <class Arch, format_policy Weights, activation_format Activations>
const weight_kernels& kernels_for(const number_formats& formats) noexcept;
template <class Arch, stored_format Format>
void decode_row(const std::byte* row, std::size_t first, std::size_t count, float* to) noexcept;

// Whether Arch has an instruction for products of bf16 pairs: AVX-512 with BF16, whose registers are of 64 bytes.
#if defined(__AVX512BF16__)
template <class Arch>
inline constexpr bool has_bf16_dot = Arch::alignment() == 64;
template <>
inline constexpr bool has_bf16_dot<default_arch> = true;
#else
template <class Arch>
inline constexpr bool has_bf16_dot = false;
#endif

// The activation format that `paired` selects beside Weights.
template <class Arch, stored_format Weights>
constexpr auto pair_of() noexcept {
    if constexpr (quantised_format<Weights>)
        return q8_0{};
    else if constexpr (std::same_as<Weights, bf16> && has_bf16_dot<Arch>)
        return bf16{};
    else
        return f32{};
}

// Describes a format given as a type, or the one chosen at run time.
template <format_policy Format, class Describe>
constexpr number_format describe_chosen(const Format& format, const Describe& describe) {
    if constexpr (codec<Format>) {
        return describe(format);
    } else {
        number_format made = with_format(format.type, describe);
        if (made.type != format.type) made.refused = name_of(format.type);
        return made;
    }
}
template <class Arch, stored_format Format>
constexpr number_format describe_rows(const Format& format) {
    number_format made = describe(format);
    if constexpr (!std::same_as<Format, f32>) made.rows.decode = &decode_row<Arch, Format>;
    return made;
}

}  // namespace simd_detail

// Weights are packed once into panels; a call is two fused passes: the hidden values, then the output.
//
// Weights, Tables: the number formats that packed weights and tables are kept in: f32, bf16, f16, q8_0,
//   q4_0, q4_1, a codec of your own, or any_format; kept_as_given: each in its given format. Routers, the
//   outer half of a low-rank bank, norms, biases and scales stay f32.
// Activations: the format to which x and the hidden values are rounded, once, before they are multiplied with
//   weights: f32 for no rounding, a codec, or paired (the default): q8_0 beside weights of quantised integers (q8_0,
//   q4_0, q4_1; Q5_0 and k-quants kept as given), bf16 beside bf16 where the machine multiplies bf16. Each block of
//   32 has an f32 scale: the relative error is that of the format from 4e-37 (smaller blocks become 0) up to where
//   128 times a sum of products overflows f32. Routers read the unrounded values.
// Arch: the instruction set of the kernels: what the file is compiled for, or an older one by xsimd's name (xsimd::avx2).
// Numerics: f32 sums, one accumulator per output, k ascending, fused multiply-add where the machine has it.
//   Stored values are widened exactly: with f32 activations a layer computes the bits of `simd<>` with the
//   widened weights. Integers are summed exactly within a block of 32. A token's output is the
//   same to the bit whatever its batch, the number of threads and the pieces a call runs in; it differs
//   between instruction sets, that of bf16 with bf16 also with permit_amx().
// Cost: reads each packed weight once per call of up to a few hundred tokens, and the table rows of the call's
//   own tokens; two hand-overs to the executor, three with a norm or more than one token, one more where
//   more than one token's x is rounded.
template <format_policy Weights = f32, format_policy Tables = f32, activation_format Activations = paired,
          class Arch = simd_detail::default_arch>
struct simd {
    using machine = simd_detail::machine<Arch>;
    template <block_policy Block>
    using engine = cpu_detail::engine<machine, Block>;

    Weights weights{};  // name the format where it is any_format
    Tables tables{};
    Activations activations{};

    [[nodiscard]] constexpr number_formats formats() const {
        number_formats all;
        all.weights = simd_detail::describe_chosen(weights, [](auto format) { return describe(format); });
        all.tables = simd_detail::describe_chosen(tables, describe_rows);
        all.activations = describe_activations();
        all.kernels = &simd_detail::kernels_for<Arch, Weights, Activations>;
        if constexpr (!codec<Weights>)
            if (weights.as_given)
                all.weights.of = [](dtype given) {
                    return with_kept_format(given, [](auto format) { return describe(format); });
                };
        if constexpr (!codec<Tables>)
            if (tables.as_given)
                all.tables.of = [](dtype given) {
                    return with_table_format(table_kept_as(given), describe_rows);
                };
        return all;
    }

private:
    static constexpr auto describe_rows = [](auto format) {
        return simd_detail::describe_rows<Arch>(format);
    };
    [[nodiscard]] constexpr number_format describe_activations() const {
        if constexpr (codec<Activations>) {
            return describe(activations);
        } else {
            const auto beside = [&](auto format) {
                return activations.rounds ? describe(simd_detail::pair_of<Arch, decltype(format)>())
                                          : number_format{};
            };
            if constexpr (codec<Weights>)
                return beside(weights);
            else if (weights.as_given)
                return activations.rounds
                           ? number_format{.name = "what goes with the weights", .type = dtype::q8_0}
                           : number_format{};
            else
                return with_format(weights.type, beside);
        }
    }
};

// The smallest layer: 4-bit weights; 8-bit tables, as a table row enters the hidden values directly, while the errors
// of weights are averaged over a sum.
using simd_small = simd<q4_0, q8_0>;

TIFFIN_END
