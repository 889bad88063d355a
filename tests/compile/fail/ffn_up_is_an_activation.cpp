// expect: tiffin: ffn<Gate, Up, Fusion, Output>: the second argument is not a source; a source has
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::dense> block;
#else
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::silu> block;
#endif
