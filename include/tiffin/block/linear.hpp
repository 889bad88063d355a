#pragma once

#include <tiffin/fixed_string.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/named.hpp>

TIFFIN_BEGIN

// One dense projection as a layer, of any output width: y = x W^T + b. For the products that are not part of a block.
// Shapes: x (T, d_model), `<Name>.weight` (outputs, d_model), `<Name>.bias` (outputs, optional), y (T, outputs);
//   layer::outputs() returns that width. Inside another block it is a dense projection like any other.
// Numerics, cost: those of `dense`. Not available on the device. Source: docs/layers.md#linear.
//
//     auto head = tiffin::prepare<tiffin::linear<"output">>(weights, tiffin::simd<tiffin::q8_0>{});
template <fixed_string Name = "proj">
struct linear : named<dense, Name> {
    static constexpr bool own_width = true;
};

TIFFIN_END
