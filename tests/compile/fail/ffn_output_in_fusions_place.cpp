// expect: tiffin: ffn<Gate, Up, Fusion, Output>: the third argument is not a fusion; a fusion has
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::dense, tiffin::multiply, tiffin::project<>> block;
#else
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::dense, tiffin::project<>> block;
#endif
