#pragma once

#include <tiffin/grammar/tree.hpp>

#include <array>
#include <concepts>
#include <string_view>
#include <tuple>

TIFFIN_BEGIN

// Two sources joined: h = fusion(g, u). Their dense parts are called gate_proj and up_proj.
// Shapes: g, u, h (T, width). Numerics, cost: those of the parts and the fusion.
// Source: docs/layers.md#sources.
template <source_policy Gate, source_policy Up, fusion_policy Fusion>
struct fused {
    static constexpr std::array<std::string_view, 2> roles{{"gate_proj", "up_proj"}};

    Gate gate{};
    Up up{};
    Fusion fusion{};

    TIFFIN_HD constexpr std::tuple<const Gate&, const Up&> parts() const noexcept { return {gate, up}; }
    using formula_is = policy_of_values<fused>;
    [[nodiscard]] constexpr const Fusion& formula() const noexcept { return fusion; }
    [[nodiscard]] constexpr double flops() const noexcept { return fusion.flops(); }

    template <class Value>
    TIFFIN_HD Value operator()(const Value& g, const Value& u)
        const requires std::invocable<const Fusion&, const Value&, const Value&> {
        return static_cast<Value>(fusion(g, u));
    }
};

TIFFIN_END
