// expect: tiffin: sum<...>: one of the parts is not a source
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::sum<tiffin::dense, tiffin::token_embedding> source;
#else
tiffin::sum<tiffin::dense, tiffin::silu> source;
#endif
