#pragma once

#include <tiffin/grammar/concepts.hpp>

TIFFIN_BEGIN

namespace detail {

template <class Source>
struct as_block {
    static_assert(source_policy<Source>, "tiffin: source_block<Source>: the argument is not a source");
    using type = Source;
};

}  // namespace detail

// A source as a block of its own: y = Source(x, t), d_model wide. For example the modulator of a block without the
// block: delayed<source_block<modulator_pool<>>, 2> is MoRT's cross-layer residual. Every source is a block; this
// alias only states the intent.
// Shapes: x, y (T, d_model); the source's tensors by their own names. Cost: that of the source.
// Source: docs/layers.md#source_block.
template <class Source>
using source_block = typename detail::as_block<Source>::type;

TIFFIN_END
