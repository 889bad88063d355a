#pragma once

#include <tiffin/block/ffn.hpp>

#include <tuple>

TIFFIN_BEGIN

// A block that reads the residual stream in x's place: y = Block(residual, t).
// Shapes: residual (T, d_model), given with the call (token_inputs::residual); tensors as the block's.
// Errors: a residual that is missing or does not fit is errc::size. Cost: the block's.
// Source: the published MeKi code, whose gate reads the state before the norm; SPEC 2.5.
template <class Block>
struct on_residual {
    static_assert(block_policy<Block>, "tiffin: on_residual<Block>: the argument is not a block");

    Block block{};

    constexpr std::tuple<const Block&> blocks() const noexcept { return {block}; }

    template <class Shape, class Prefix, class Visit>
    constexpr void visit_parts(const Shape& sizes, const Prefix& prefix, double share,
                               const Visit& visit) const {
        visit(block, sizes.part(0), prefix, share);
    }
};

TIFFIN_END
