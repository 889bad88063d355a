// Activations rounded to q8_0 times panels of whole numbers: these are multiplied and added, the scales come in once
// per part of a block.
#pragma once

#include <tiffin/cpu/simd/integer_panel.hpp>
#include <tiffin/cpu/simd/integer_row.hpp>
#include <tiffin/cpu/simd/tile.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace simd_detail {

// The products of one part of 32 inputs, those from 32 b on. A function and not a lambda of the tile's: g++ 12 leaves
// sums in memory that a lambda within a lambda adds to, at half the speed.
template <class Panel, std::size_t Registers, std::size_t Tokens, std::size_t Panels, std::size_t Part>
[[gnu::always_inline]] inline void multiply_part(const typename Panel::row* rows, std::size_t b,
                                                 const std::byte* w, std::size_t apart, float* at, bool fresh,
                                                 ahead& next) noexcept {
    using dot = typename Panel::dot;
    using reg = typename Panel::reg;
    using arch = typename reg::arch_type;
    const std::size_t i = b * Panel::parts + Part;
    typename dot::sums sums[Panels * Tokens][Registers];
    TIFFIN_UNROLL(24)
    for (std::size_t n = 0; n < Panels * Tokens; ++n) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r)
        sums[n][r] = dot::begin(Panel::has_least ? 0 : rows[n % Tokens].shifts[i]);
    std::size_t k = i * (q8_0::block / Panel::parts);
    Panel::template each<Panels, Part>(
        w, b, apart,
        [&](std::size_t p, const typename dot::weights(&weights)[Registers]) __attribute__((always_inline)) {
            if (p == 0 && k % ask_every == 0) next.ask();
            TIFFIN_UNROLL(24)
            for (std::size_t t = 0; t < Tokens; ++t) TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r)
                dot::add(sums[p * Tokens + t][r], weights[r], rows[t].values + k);
            if (p + 1 == Panels) k += dot::group;
        });
    TIFFIN_UNROLL(24)
    for (std::size_t n = 0; n < Panels * Tokens; ++n) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r, at += reg::size) {
        const auto& row = rows[n % Tokens];
        const std::byte* const panel = w + n / Tokens * apart;
        reg before = fresh && i == 0 ? reg(0.0f) : reg::load_aligned(at);
        if constexpr (Panel::has_least)
            before = multiply_add<arch>(Panel::least(panel, b, Part, r), reg(row.shifts[i]), before);
        const reg total(dot::total(sums[n][r], Panel::has_least ? 0 : row.shifts[i]));
        multiply_add<arch>(Panel::scale(panel, b, Part, r), total * reg(row.scales[b]), before)
            .store_aligned(at);
    }
}

// acc[panel][token][register] (+)= sum over parts of d_w d_x (sum of q_x (q_w - zero)) [+ m_w (d_x sum of q_x)].
// Shapes: as multiply_tile's; x holds the panel's rows.
// Numerics: a part's sum of whole numbers is exact; it is rounded once as it is scaled by d_x, and once
//   as it is scaled by d_w and added; what the least numbers add comes before that, with a rounding of its own.
//   Parts ascend, one accumulator per output.
template <class Panel, std::size_t Registers, std::size_t Tokens, std::size_t Panels>
void multiply_integer_tile(const std::byte* x, std::size_t depth, const std::byte* w, std::size_t apart,
                           float* acc, bool fresh, ahead next) noexcept {
    const auto* const rows = reinterpret_cast<const typename Panel::row*>(x);
    for (std::size_t b = 0; b < depth / q8_0::block; ++b) {
        multiply_part<Panel, Registers, Tokens, Panels, 0>(rows, b, w, apart, acc, fresh, next);
        if constexpr (Panel::parts == 2)
            multiply_part<Panel, Registers, Tokens, Panels, 1>(rows, b, w, apart, acc, fresh, next);
    }
}

}  // namespace simd_detail

TIFFIN_END
