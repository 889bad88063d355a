// The number format of activations that goes with the weights'.
#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN

// Activations are rounded once before they are multiplied, to q8_0 beside weights of whole numbers times scales, whose
// products are then of whole numbers, and to bf16 beside bf16 where the machine has an instruction for that
// (AVX512_BF16); else, and with paired{false}, they stay f32.
// Numerics: of a product's inputs, those of the activations' format; see cpu/simd/panel_product.hpp.
struct paired {
    bool rounds = true;
};

TIFFIN_END
