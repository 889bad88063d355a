#pragma once

#include <tiffin/grammar/tree.hpp>

TIFFIN_BEGIN

// A learned vector, the same for every token: z = b, the tensor Name; zeros where it is not given.
// Shapes: b (width), z (T, width), as wide as what it is added to. Cost: one value per element.
// Source: LayerNorm with an offset, sum<normed<rms, centred>, bias<"norm.bias">>.
template <fixed_string Name = "bias">
struct bias {
    using offset = vector<Name>;
    using tensors = tensor_list<offset>;
    using formula_is = sum_of_values<bias>;

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[offset{}];
    }
};

TIFFIN_END
