// The number format of activations that goes with the weights'.
#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN

// Activations are rounded once before they are multiplied, to the format whose products with the weights'
// format the machine has an instruction for: q8_0 beside q8_0 and q4_0, bf16 beside bf16 where there is one
// (AVX512_BF16); else, and with paired{false}, they stay f32.
// Numerics: of a product's inputs, those of the activations' format; see backend/simd/panel_product.hpp.
struct paired {
    bool rounds = true;
};

TIFFIN_END
