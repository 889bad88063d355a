#pragma once

#include <tiffin/grammar/concepts.hpp>

#include <tuple>

TIFFIN_BEGIN

// A block that reads the residual stream instead of x: y = Block(residual, t).
// Shapes: residual (T, d_model), given with the call (token_inputs::residual); tensors as the block's.
// Errors: a residual that is missing or does not fit is errc::size. Cost: the block's.
// Source: the published MeKi code, whose gate reads the state before the norm; docs/layers.md#on_residual.
template <class Block>
struct on_residual {
    static_assert(block_policy<Block>, "tiffin: on_residual<Block>: the argument is not a block");
    using source_role = residual_role;
    using tensors = tensor_list<computed>;

    Block block{};

    TIFFIN_HD constexpr std::tuple<const Block&> parts() const noexcept { return {block}; }
    static constexpr double flops() noexcept { return 0; }
};

TIFFIN_END
