// expect: tiffin: gate<Activation, Source>: the first argument is not an activation; an activation has
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::gate<tiffin::silu, tiffin::dense> gate;
#else
tiffin::gate<tiffin::dense, tiffin::silu> gate;
#endif
