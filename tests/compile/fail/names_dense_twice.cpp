// expect: tiffin: ffn<...>: two parts of this block read a tensor of the same name; wrap one of them in
// named
#include <tiffin/layers.hpp>
#include <tiffin/source/named.hpp>

#ifdef TIFFIN_EXPECT_PASS
using second = tiffin::named<tiffin::dense, "second_proj">;
#else
using second = tiffin::dense;
#endif
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::sum<tiffin::dense, second>> block;
