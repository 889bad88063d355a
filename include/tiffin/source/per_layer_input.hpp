#pragma once

#include <tiffin/source/tree.hpp>

TIFFIN_BEGIN

// A row that the caller computes and gives with each call: z = p (see token_inputs::per_layer_input).
// Shapes: p, z (T, width). Errors: a width or a number of rows that does not fit is errc::size.
// Cost: width numbers read a token. Source: PLE of Gemma 3n, SPEC 2.5.
struct per_layer_input {
    using row = given;
    using tensors = tensor_list<row>;

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[row{}];
    }
};

TIFFIN_END
