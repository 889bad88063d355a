#include "layer_files.hpp"

TIFFIN_LAYER_FILES(, tiffin::reference<>);
