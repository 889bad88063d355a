#include "layer_gradients.hpp"

TIFFIN_LAYER_GRADIENTS(, tiffin::reference<>);
TIFFIN_LAYER_GRADIENTS(, tiffin::simd<>);
