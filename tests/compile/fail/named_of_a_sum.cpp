// expect: tiffin: named<Source, Name>: the first argument|constraint.*named
// tiffin has no sentence of its own here yet: the compiler's is accepted beside it.
#include <tiffin/layers.hpp>
#include <tiffin/source/named.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::sum<tiffin::dense, tiffin::named<tiffin::token_embedding, "memory">> source;
#else
tiffin::named<tiffin::sum<tiffin::dense, tiffin::token_embedding>, "memory"> source;
#endif
