#pragma once

#include <tiffin/block/ffn.hpp>

#include <tuple>

TIFFIN_BEGIN

// A block's output modulated: y = fusion(Block(x, t), modulator(x, t)).
// Shapes: x, y, modulator (T, d_model); the block's tensors are called `base.<name>`.
// Numerics: fused into the epilogue of an ffn; one more pass over y for other blocks.
// Cost: that of the block, the modulator and the fusion.
// Source: ReToken Eq. 2, MoRT Eq. 6; SPEC 2.6.
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

    Block base{};
    Modulator modulator{};
    Fusion fusion{};

    constexpr std::tuple<const Block&> blocks() const noexcept { return {base}; }

    template <class Shape, class Prefix, class Visit>
    constexpr void visit_parts(const Shape& sizes, const Prefix& prefix, double share,
                               const Visit& visit) const {
        visit(base, sizes.part(0), prefix + "base.", share);
        visit(modulator, sizes, prefix, share);
    }
};

TIFFIN_END
