// expect: tiffin: a router of rows chooses among rows, chosen_rows or those of a pool, and not among the matrices
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
using bank = tiffin::routed_low_rank<tiffin::softmax_topk>;
#else
using bank = tiffin::routed_low_rank<tiffin::product_keys>;
#endif
using block = tiffin::ffn<tiffin::gate<tiffin::gelu, tiffin::sum<tiffin::dense, bank>>>;
static_assert(sizeof(block) > 0);
