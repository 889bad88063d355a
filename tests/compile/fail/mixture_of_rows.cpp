// expect: tiffin: mixture<Router, Expert>: the router chooses rows of a table and no experts; write
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::mixture<tiffin::softmax_topk, tiffin::swiglu> block;
#else
tiffin::mixture<tiffin::product_keys, tiffin::swiglu> block;
#endif
