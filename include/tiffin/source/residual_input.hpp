#pragma once

#include <tiffin/grammar/tree.hpp>

TIFFIN_BEGIN

// The residual stream, given with the call (token_inputs::residual): z = r.
// Shapes: r, z (T, d_model). Errors: a residual that is missing or does not fit is errc::size; a width other than
// d_model is errc::shape. Cost: d_model values read per token. Source: docs/layers.md#branches.
struct residual_input {
    using row = residual_row;
    using tensors = tensor_list<row>;
    using formula_is = sum_of_values<residual_input>;

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[row{}];
    }
};

TIFFIN_END
