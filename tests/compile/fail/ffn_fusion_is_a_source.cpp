// expect: tiffin: ffn<Gate, Up, Fusion, Output>: the third argument is not a fusion; a fusion has
#include <tiffin/fusion/add.hpp>
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::dense, tiffin::add> block;
#else
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::dense, tiffin::token_embedding> block;
#endif
