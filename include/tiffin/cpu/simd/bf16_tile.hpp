// Activations rounded to bf16 times panels of bf16, two inputs to an instruction.
#pragma once

#include <tiffin/cpu/simd/backend.hpp>
#include <tiffin/cpu/simd/tile.hpp>
#include <tiffin/format/bf16.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

TIFFIN_BEGIN

namespace simd_detail {

// Panels of bf16, the weights of inputs 2 i and 2 i + 1 adjacent: lane j of a register holds the pair of output j as
// 32 bits. An odd last input is paired with 0.
template <class Arch, std::size_t Registers>
struct bf16_panel {
    static constexpr std::size_t numbers = Registers * width<Arch>;

    static void put(const bf16::storage& number, std::size_t k, std::size_t column, std::byte* to) noexcept {
        std::memcpy(to + ((k / 2 * numbers + column) * 2 + k % 2) * sizeof number, &number, sizeof number);
    }
};

// sums + a_0 b_0 + a_1 b_1 in each lane; a and b hold pairs of bf16.
template <class Arch>
lanes<Arch> add_pairs(const lanes<Arch>& sums, const lanes<Arch>& a, const lanes<Arch>& b) noexcept {
#if defined(__AVX512BF16__)
    if constexpr (has_bf16_dot<Arch>) {
        const __m512 x = a, y = b;
        return _mm512_dpbf16_ps(sums, std::bit_cast<__m512bh>(x), std::bit_cast<__m512bh>(y));
    } else
#endif
    {
        using whole = xsimd::batch<std::int32_t, Arch>;
        const auto first = [](const lanes<Arch>& pair) {
            return xsimd::bitwise_cast<lanes<Arch>>(xsimd::bitwise_cast<whole>(pair) << 16);
        };
        const auto second = [](const lanes<Arch>& pair) {
            return xsimd::bitwise_cast<lanes<Arch>>(xsimd::bitwise_cast<whole>(pair) & whole(-65536));
        };
        return multiply_add<Arch>(second(a), second(b), multiply_add<Arch>(first(a), first(b), sums));
    }
}

// Rounds `count` activations into a row, from index `first` on, padded with zeros to a multiple of Step.
template <std::size_t Step>
void round_to_bf16(const float* from, std::size_t first, std::size_t count, std::byte* row) noexcept {
    auto* const at = reinterpret_cast<bf16::storage*>(row) + first;
    for (std::size_t k = 0; k < count; ++k) bf16::encode(from + k, at[k]);
    for (std::size_t k = count; k % Step != 0; ++k) at[k] = 0;
}

// acc[panel][token][register] (+)= sum over pairs k of x[token][k] w[panel][k][register].
// Shapes: as multiply_tile's; x holds rows of depth_block bf16.
// Numerics: pairs ascend, one accumulator per output. The order within a pair and the treatment of denormals
//   are the instruction's; without it the first product is added first, each with one rounding.
template <class Arch, std::size_t Registers, std::size_t Tokens, std::size_t Panels>
void multiply_bf16_tile(const std::byte* x, std::size_t depth, const std::byte* w, std::size_t apart,
                        float* acc, bool fresh, ahead next) noexcept {
    using reg = lanes<Arch>;
    constexpr std::size_t row_bytes = depth_block * sizeof(bf16::storage);
    reg sums[Panels * Tokens][Registers];
    TIFFIN_UNROLL(24)
    for (std::size_t i = 0; i < Panels * Tokens; ++i) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r)
        sums[i][r] = fresh ? reg(0.0f) : reg::load_aligned(acc + (i * Registers + r) * width<Arch>);
    for (std::size_t k = 0; k < depth; k += 2, x += 4, w += Registers * sizeof(reg)) {
        if (k % prefetch_every == 0) next.prefetch();
        TIFFIN_UNROLL(8)
        for (std::size_t p = 0; p < Panels; ++p) {
            reg weights[Registers];
            TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r)
                weights[r] =
                    reg::load_aligned(reinterpret_cast<const float*>(w + p * apart) + r * width<Arch>);
            TIFFIN_UNROLL(24)
            for (std::size_t t = 0; t < Tokens; ++t) {
                float pair;
                std::memcpy(&pair, x + t * row_bytes, sizeof pair);
                TIFFIN_UNROLL(24)
                for (std::size_t r = 0; r < Registers; ++r) {
                    reg& sum = sums[p * Tokens + t][r];
                    sum = add_pairs<Arch>(sum, reg(pair), weights[r]);
                    pin(sum.data);
                }
            }
        }
    }
    TIFFIN_UNROLL(24)
    for (std::size_t i = 0; i < Panels * Tokens; ++i) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r)
        sums[i][r].store_aligned(acc + (i * Registers + r) * width<Arch>);
}

}  // namespace simd_detail

TIFFIN_END
