#pragma once

#include <tiffin/grammar/tree.hpp>

TIFFIN_BEGIN

// A row that the caller computes and gives with each call: z = p (see token_inputs::per_layer_input).
// Shapes: p, z (T, width). Errors: a width or a number of rows that does not fit is errc::size.
// Cost: width values read per token. Source: PLE of Gemma 3n, docs/layers.md#ple.
struct per_layer_input {
    using row = given;
    using tensors = tensor_list<row>;
    using formula_is = sum_of_values<per_layer_input>;

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[row{}];
    }
};

TIFFIN_END
