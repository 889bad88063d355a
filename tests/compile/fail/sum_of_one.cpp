// expect: tiffin: sum<...> needs two sources or more
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::sum<tiffin::dense, tiffin::token_embedding> source;
#else
tiffin::sum<tiffin::dense> source;
#endif
