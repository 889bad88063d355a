#pragma once

#include <tiffin/grammar/tree.hpp>

TIFFIN_BEGIN

// The dense projection: z = x W^T + b.
// Shapes: x (T, input), weight (width, input), bias (width, optional), z (T, width). Its tensors
//   are named after its role: `gate_proj.weight`, `up_proj.bias`, `down_proj.weight`.
// Numerics: one accumulator per output, k ascending; the bias is added last.
// Cost: 2 input width FLOPs per token; every weight is read once per call.
// Source: docs/layers.md#sources.
struct dense {
    using weight = projection<"weight">;
    using bias = vector<"bias", presence::optional>;
    using tensors = tensor_list<weight, bias>;
    using formula_is = sum_of_values<dense>;

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[weight{}] + at[bias{}];
    }
};

TIFFIN_END
