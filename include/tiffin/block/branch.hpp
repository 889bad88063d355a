#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/source/normed.hpp>
#include <tiffin/source/residual_input.hpp>
#include <tiffin/source/source_input.hpp>
#include <tiffin/source/sum.hpp>

#include <tuple>

TIFFIN_BEGIN

// A block with a norm before it: y = Block(norm(x), t).
// Shapes: x, y (T, d_model); `pre_norm.weight` (d_model) where the norm is weighted; tensors as the block's.
// Numerics: the normalised rows are stored in f32 (double in `reference`), and rounded as the block's x is.
// Errors: the block's. Cost: the norm, one stored row per token, and the block. Source: docs/layers.md#branches.
template <norm_policy Norm, class Block>
struct pre_normed {
    static_assert(block_policy<Block>, "tiffin: pre_normed<Norm, Block>: the second argument is not a block");
    using source_role = chain_role;
    using tensors = tensor_list<computed>;
    static constexpr bool keeps_width = true;
    using norm_type = normed<Norm, source_input, "pre_norm">;

    norm_type norm{};
    Block block{};

    TIFFIN_HD constexpr std::tuple<const norm_type&, const Block&> parts() const noexcept {
        return {norm, block};
    }
    static constexpr double flops() noexcept { return 0; }
};

// A whole branch of a transformer layer in one call: y = Block(norm(x), t) + r, r the residual of the call. x, r and y
// may be the same memory.
//
//     using llama_branch = branch<rms, swiglu>;
template <norm_policy Norm, class Block>
using branch = sum<pre_normed<Norm, Block>, residual_input>;

TIFFIN_END
