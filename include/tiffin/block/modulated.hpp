#pragma once

#include <tiffin/fusion/multiply.hpp>
#include <tiffin/grammar/parts.hpp>

#include <concepts>
#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

// A block's output modulated: y = fusion(Block(x, t), modulator(x, t)).
// Shapes: x, y, modulator (T, d_model); the block's tensors are named `base.<name>`.
// Numerics: applied in the epilogue of the block's last step. Cost: that of the block, the modulator and the fusion.
// Source: ReToken Eq. 2, MoRT Eq. 6; docs/layers.md#modulated.
//
//     using retoken = modulated<swiglu, token_modulator<>, multiply>;
//     using mort    = modulated<swiglu, modulator_pool<>, add>;
template <class Block, class Modulator, class Fusion = multiply>
struct modulated {
    static_assert(block_policy<Block>,
                  "tiffin: modulated<Block, Modulator, Fusion>: the first argument is not a block");
    static_assert(source_policy<Modulator>,
                  "tiffin: modulated<Block, Modulator, Fusion>: the second argument is not a source");
    static_assert(fusion_policy<Fusion>,
                  "tiffin: modulated<Block, Modulator, Fusion>: the third argument is not a fusion");
    // If both route, a call records the modulator's routes.
    static constexpr std::size_t recorded_first = 1;

    Block base{};
    Modulator modulator{};
    Fusion fusion{};

    static constexpr part_scope scope(std::size_t part) noexcept {
        return part == 0 ? part_scope{"base"} : part_scope{};
    }
    TIFFIN_HD constexpr std::tuple<const Block&, const Modulator&> parts() const noexcept {
        return {base, modulator};
    }
    using formula_is = policy_of_values<modulated>;
    [[nodiscard]] constexpr const Fusion& formula() const noexcept { return fusion; }
    [[nodiscard]] constexpr double flops() const noexcept { return fusion.flops(); }

    template <class Value>
    TIFFIN_HD Value operator()(const Value& v, const Value& m)
        const requires std::invocable<const Fusion&, const Value&, const Value&> {
        return static_cast<Value>(fusion(v, m));
    }
};

TIFFIN_END
