// expect: tiffin: named<Source, Name>: the first argument
#include <tiffin/layers.hpp>
#include <tiffin/source/named.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::sum<tiffin::dense, tiffin::named<tiffin::token_embedding, "memory">> source;
#else
tiffin::named<tiffin::sum<tiffin::dense, tiffin::token_embedding>, "memory"> source;
#endif
