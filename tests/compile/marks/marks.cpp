// What config.hpp calls the instruction set that this is compiled for; `marks.cmake` reads it.
#include <tiffin/config.hpp>

TIFFIN_MARK_IS TIFFIN_ABI
