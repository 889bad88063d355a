// The number format of activations that the weights' format determines.
#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN

// Activations are rounded once before they are multiplied: to q8_0 beside weights of quantised integers times scales,
// for integer dot products, and to bf16 beside bf16 where the machine has an instruction for that (AVX512_BF16).
// Otherwise, and with paired{false}, they stay f32.
// Numerics: a product's inputs have the rounding errors of that format; see cpu/simd/panel_product.hpp.
struct paired {
    bool rounds = true;
};

TIFFIN_END
