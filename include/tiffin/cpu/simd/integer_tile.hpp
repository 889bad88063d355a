// Activations rounded to q8_0 times panels of quantised integers: integer dot products, scaled once per 32 inputs.
#pragma once

#include <tiffin/cpu/simd/integer_panel.hpp>
#include <tiffin/cpu/simd/integer_row.hpp>
#include <tiffin/cpu/simd/tile.hpp>

#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace simd_detail {

// totals[panel * Tokens + token] (+)= sum of q_x (q_w - zero) over a part of piece b of the inputs, times its factor
// where a piece has two. Functions and not lambdas of the tile's: g++ 12 leaves sums in memory that a lambda within
// a lambda adds to, at half the speed.
template <class Panel, std::size_t Registers, std::size_t Tokens, std::size_t Panels, std::size_t Part>
[[gnu::always_inline]] inline void add_part(const typename Panel::row* rows, std::size_t b,
                                            const std::byte* w, std::size_t apart,
                                            typename Panel::whole (&totals)[Panels * Tokens][Registers],
                                            ahead& next) noexcept {
    using dot = typename Panel::dot;
    using whole = typename Panel::whole;
    const std::size_t part = b * Panel::parts + Part;
    const auto offset = [&](std::size_t n) -> std::int32_t {
        if constexpr (Panel::has_least)
            return 0;
        else
            return rows[n % Tokens].shifts[part];
    };
    typename dot::sums sums[Panels * Tokens][Registers];
    TIFFIN_UNROLL(24)
    for (std::size_t n = 0; n < Panels * Tokens; ++n) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r) sums[n][r] = dot::begin(offset(n));
    std::size_t k = part * (q8_0::block / Panel::parts);
    Panel::template each<Panels, Part>(
        w, b, apart,
        [&](std::size_t p, const typename dot::weights(&weights)[Registers]) __attribute__((always_inline)) {
            if (p == 0 && k % prefetch_every == 0) next.prefetch();
            TIFFIN_UNROLL(24)
            for (std::size_t t = 0; t < Tokens; ++t) TIFFIN_UNROLL(24)
            for (std::size_t r = 0; r < Registers; ++r)
                dot::add(sums[p * Tokens + t][r], weights[r], rows[t].values + k);
            if (p + 1 == Panels) k += dot::group;
        });
    TIFFIN_UNROLL(24)
    for (std::size_t n = 0; n < Panels * Tokens; ++n) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r) {
        const whole total(dot::total(sums[n][r], offset(n)));
        if constexpr (Panel::parts == 1)
            totals[n][r] = total;
        else if constexpr (Part == 0)
            totals[n][r] = total * Panel::factor(w + n / Tokens * apart, b, Part, r);
        else
            totals[n][r] += total * Panel::factor(w + n / Tokens * apart, b, Part, r);
    }
}

// Adds a piece to the sum `before`: first the term of its minimum, then its integer sum `total` scaled by d_x and d_w.
template <class Panel>
[[gnu::always_inline]] inline typename Panel::reg add_scaled(typename Panel::reg before,
                                                             const typename Panel::reg& total,
                                                             const typename Panel::row& row,
                                                             const std::byte* panel, std::size_t b,
                                                             std::size_t r) noexcept {
    using reg = typename Panel::reg;
    using arch = typename reg::arch_type;
    if constexpr (Panel::has_least)
        before = multiply_add<arch>(Panel::least(panel, b, r), reg(row.shifts[b]), before);
    return multiply_add<arch>(Panel::scale(panel, b, r), total * reg(row.scales[b]), before);
}

// acc[panel][token][register] (+)= the products of piece b.
template <class Panel, std::size_t Registers, std::size_t Tokens, std::size_t Panels>
[[gnu::always_inline]] inline void add_piece(const typename Panel::row* rows, std::size_t b,
                                             const std::byte* w, std::size_t apart, float* acc, bool fresh,
                                             ahead& next) noexcept {
    using reg = typename Panel::reg;
    typename Panel::whole totals[Panels * Tokens][Registers];
    add_part<Panel, Registers, Tokens, Panels, 0>(rows, b, w, apart, totals, next);
    if constexpr (Panel::parts == 2)
        add_part<Panel, Registers, Tokens, Panels, 1>(rows, b, w, apart, totals, next);
    TIFFIN_UNROLL(24)
    for (std::size_t n = 0; n < Panels * Tokens; ++n) TIFFIN_UNROLL(24)
    for (std::size_t r = 0; r < Registers; ++r, acc += reg::size) {
        const reg before = fresh && b == 0 ? reg(0.0f) : reg::load_aligned(acc);
        add_scaled<Panel>(before, xsimd::to_float(totals[n][r]), rows[n % Tokens], w + n / Tokens * apart, b,
                          r)
            .store_aligned(acc);
    }
}

// acc[panel][token][register] (+)= sum over pieces of d_w d_x (sum of q_x (q_w - zero)) [+ m_w (d_x sum of q_x)]; where
// a piece has two parts, the inner sum is that of both times their factors.
// Shapes: as multiply_tile's; x holds rows of type Panel::row.
// Numerics: a piece's integer sum is exact, and below 2^24 (32 x 32 x 127 x 128 where it has factors); it is
//   rounded once as it is scaled by d_x, and once as it is scaled by d_w and added; what the minima add
//   comes before that, with a rounding of its own. Pieces ascend, one accumulator per output.
template <class Panel, std::size_t Registers, std::size_t Tokens, std::size_t Panels>
void multiply_integer_tile(const std::byte* x, std::size_t depth, const std::byte* w, std::size_t apart,
                           float* acc, bool fresh, ahead next) noexcept {
    const auto* const rows = reinterpret_cast<const typename Panel::row*>(x);
    for (std::size_t b = 0; b < depth / q8_0::block; ++b)
        add_piece<Panel, Registers, Tokens, Panels>(rows, b, w, apart, acc, fresh, next);
}

}  // namespace simd_detail

TIFFIN_END
