// The norms of a modulator, chosen at run time.
#pragma once

#include <tiffin/norm/l2.hpp>
#include <tiffin/norm/rms.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

TIFFIN_BEGIN

enum class norm_kind : std::uint8_t { l2, rms };

// In the order of `norm_kind`.
inline constexpr std::array<std::string_view, 2> norm_names{{"l2", "rms"}};

constexpr std::optional<norm_kind> norm_named(std::string_view name) noexcept {
    for (std::size_t i = 0; i < norm_names.size(); ++i)
        if (norm_names[i] == name) return static_cast<norm_kind>(i);
    return std::nullopt;
}

// l2, or rms without a weight: what a layer file may name for a modulator.
// Numerics: those of the one chosen. Cost: a branch a row more.
struct any_norm {
    static constexpr bool weighted = false;
    norm_kind kind = norm_kind::l2;
    float eps = 1e-6f;

    static constexpr double flops() noexcept { return 3; }

    template <class S>
    TIFFIN_HD S scale(const S& sum_of_squares, const S& count) const {
        return kind == norm_kind::l2 ? l2{eps}.scale(sum_of_squares, count)
                                     : rms{eps}.scale(sum_of_squares, count);
    }
    template <class S>
    TIFFIN_HD S operator()(const S& x, const S& scale, const S& /*weight*/) const {
        return x * scale;
    }
};

TIFFIN_END
