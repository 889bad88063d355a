// expect: tiffin: ffn<Gate, Up, Fusion, Output>: the fourth argument is not an output; write project<>
#include <tiffin/layers.hpp>
#include <tiffin/norm/rms.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::dense, tiffin::multiply, tiffin::project<tiffin::rms>> block;
#else
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::dense, tiffin::multiply, tiffin::rms> block;
#endif
