// Layer files that learn, compiled once for all programs: each backend takes a minute.
#pragma once

#include <tiffin/io/training_layer.hpp>
#include <tiffin/train/reference.hpp>
#include <tiffin/train/simd.hpp>

#define TIFFIN_LAYER_GRADIENTS(DECLARATION, BACKEND)                                               \
    DECLARATION template tiffin::result<tiffin::trainable_layer<tiffin::training_number<BACKEND>>> \
    tiffin::io::load_training_layer<BACKEND>(                                                      \
        const tiffin::io::described_layer&, const BACKEND&,                                        \
        const tiffin::training_options<tiffin::training_number<BACKEND>>&)

TIFFIN_LAYER_GRADIENTS(extern, tiffin::reference<>);
TIFFIN_LAYER_GRADIENTS(extern, tiffin::simd<>);
