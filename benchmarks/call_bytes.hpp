// What a call reads at least.
#pragma once

#include <tiffin/analysis/cost.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>

// Bytes that a call of `tokens` tokens with different ids has to read: dense weights once, a row per token,
// and of experts those that some token is led to, each token by chance and for itself.
// number_bytes(kind): of one number of a tensor of that kind.
template <class Block, class NumberBytes>
double bytes_of_call(const Block& block, const tiffin::block_shape& sizes, double tokens,
                     const NumberBytes& number_bytes) {
    double bytes = 0;
    for (const auto& [name, t] : tiffin::tensors_needed(block, sizes)) {
        if (t.needed == tiffin::presence::optional) continue;
        const double elements = number_bytes(t.kind) * static_cast<double>(t.shape.elements());
        double experts = 1, share = t.share, rows = 0;
        for (std::size_t i = 0; i < t.shape.rank(); ++i) {
            if (t.axes[i] == tiffin::axis::experts) experts = static_cast<double>(t.shape[i]);
            if (t.axes[i] == tiffin::axis::vocab) rows = static_cast<double>(t.shape[i]);
        }
        const double chosen = static_cast<double>(t.choices);
        if (rows > 0)
            bytes += elements / rows / experts * chosen * share * tokens;
        else if (t.kind == tiffin::tensor_kind::logits)
            bytes += elements;
        else
            bytes += elements * (1 - std::pow(1 - share * std::min(1.0, chosen / experts), tokens));
    }
    return bytes;
}
