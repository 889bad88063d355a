#pragma once

#include <tiffin/block/ffn.hpp>

#include <tuple>

TIFFIN_BEGIN

// A source as a block of its own: y = Source(x, t), d_model wide. What a modulator adds to a block,
// without the block: delayed<source_block<modulator_pool<>>, 2> is MoRT's cross-layer residual.
// Shapes: x, y (T, d_model); the source's tensors by their own names. Cost: that of the source.
// Source: SPEC 2.6.
template <class Source>
struct source_block {
    static_assert(source_policy<Source>, "tiffin: source_block<Source>: the argument is not a source");

    Source source{};

    constexpr std::tuple<> blocks() const noexcept { return {}; }

    template <class Shape, class Prefix, class Visit>
    constexpr void visit_parts(const Shape& sizes, const Prefix& prefix, double share,
                               const Visit& visit) const {
        visit(source, sizes, prefix, share);
    }
};

TIFFIN_END
