// expect: tiffin: modulated<Block, Modulator, Fusion>: the first argument is not a block
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::modulated<tiffin::swiglu, tiffin::folded_modulator> block;
#else
tiffin::modulated<tiffin::silu, tiffin::folded_modulator> block;
#endif
