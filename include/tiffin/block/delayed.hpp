#pragma once

#include <tiffin/error.hpp>
#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/option.hpp>

#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

// A block whose output is returned `Layers` delayed layers later: y = Block(x, t) of the layer that many calls
// earlier, 0 where there was none. For a residual beside an undelayed block: parallel<Block, delayed<Other, 2>>.
// Shapes: x, y (T, d_model); carried_residuals(Layers, tokens, d_model); tensors as the block's.
// Numerics: the carried rows are f32. Errors: errc::size for no handle, one of other sizes, or one that carries a
//   residual of another number of tokens; errc::option, found by prepare(), for two delayed blocks in one, or one
//   inside a mixture.
// Cost: that of the block, and one pass over two rows per token. Source: MoRT, Appendix C;
//   docs/layers.md#cross-layer-residual.
template <class Block, std::size_t Layers>
struct delayed {
    static_assert(block_policy<Block>, "tiffin: delayed<Block, Layers>: the first argument is not a block");
    static_assert(Layers > 0, "tiffin: delayed<Block, Layers>: a delay of 0 layers is the block itself");
    using source_role = delay_role;
    using tensors = tensor_list<computed>;
    Block block{};
    std::size_t layers = Layers;

    static constexpr auto options() noexcept { return std::tuple(option{"layers", &delayed::layers}); }

    [[nodiscard]] status check() const {
        if (layers > 0) return {};
        return failure(errc::option, "layers", "is 0; a delay of 0 layers is the block itself");
    }
    TIFFIN_HD constexpr std::tuple<const Block&> parts() const noexcept { return {block}; }
    static constexpr double flops() noexcept { return 0; }
};

TIFFIN_END
