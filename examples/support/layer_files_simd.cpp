#include "layer_files.hpp"

TIFFIN_LAYER_FILES(, simd_of_any_format);
