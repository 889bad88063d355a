#pragma once

#include <tiffin/grammar/tree.hpp>

TIFFIN_BEGIN

// The input of the source, unchanged: z = x. In a later part of a chain that is the row of the part before it.
// Shapes: x, z (T, width). Numerics: no rounding. Errors: a width other than the input's is errc::shape.
// Cost: width values read per token. Source: docs/layers.md#branches.
struct source_input {
    using row = input_row;
    using tensors = tensor_list<row>;
    using formula_is = sum_of_values<source_input>;

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[row{}];
    }
};

TIFFIN_END
