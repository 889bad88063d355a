#pragma once

#include <tiffin/concepts.hpp>
#include <tiffin/norm/no_norm.hpp>
#include <tiffin/source/dense.hpp>

TIFFIN_BEGIN

// The output of a block: y = norm(source(h)), with the dense down-projection as the default source.
// Shapes: h (T, d_ff), y (T, d_model); `down_proj.weight` (d_model, d_ff), `down_proj.bias` (d_model,
//   optional), and `post_norm.weight` (d_model) where the norm is weighted.
// Cost: that of the source and the norm. Source: SPEC 2.1; with rms, SPEC 2.5.
template <class Norm = no_norm, class Source = dense>
struct project {
    static_assert(norm_policy<Norm>,
                  "tiffin: project<Norm, Source>: the first argument is not a norm; a norm has "
                  "`weighted`, scale(sum_of_squares, count), operator()(x, scale, weight) and "
                  "flops(), as rms has. Write project<> or project<rms>");
    static_assert(source_policy<Source>,
                  "tiffin: project<Norm, Source>: the second argument is not a source; a source has "
                  "a `tensors` list and a formula operator()(at), as dense has, or parts()");

    Norm norm{};
    Source source{};
};

TIFFIN_END
