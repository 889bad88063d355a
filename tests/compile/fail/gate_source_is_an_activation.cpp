// expect: tiffin: gate<Activation, Source>: the second argument is not a source; a source has
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::gate<tiffin::silu, tiffin::token_embedding> gate;
#else
tiffin::gate<tiffin::silu, tiffin::gelu> gate;
#endif
