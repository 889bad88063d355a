// expect: tiffin: ffn<Gate, Up, Fusion, Output>: the first argument is not a gate; write ffn<gate<silu>
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::token_embedding> block;
#else
tiffin::ffn<tiffin::dense, tiffin::token_embedding> block;
#endif
