// expect: tiffin: ffn<...>: two parts of this block read a tensor of the same name; wrap one of them in
// named
#include <tiffin/layers.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/source/named.hpp>

#ifdef TIFFIN_EXPECT_PASS
using projection = tiffin::named<tiffin::dense, "out_proj">;
#else
using projection = tiffin::named<tiffin::dense, "post_norm">;
#endif
tiffin::ffn<tiffin::gate<tiffin::silu>, tiffin::dense, tiffin::multiply,
            tiffin::project<tiffin::rms, projection>>
    block;
