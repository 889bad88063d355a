// expect: tiffin: sum<...>: one of the parts is not a source|constraint.*sum
// tiffin has no sentence of its own here yet: the compiler's is accepted beside it.
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::sum<tiffin::dense, tiffin::token_embedding> source;
#else
tiffin::sum<tiffin::dense, tiffin::silu> source;
#endif
