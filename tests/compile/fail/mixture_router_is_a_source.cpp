// expect: tiffin: mixture<Router, Expert>: the first argument is not a router; write
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::mixture<tiffin::softmax_topk, tiffin::swiglu> block;
#else
tiffin::mixture<tiffin::silu, tiffin::swiglu> block;
#endif
