// expect: tiffin: dot_gated<Gate, Left, Right, Value>: Left or Right multiplies what the whole reads, so that its row
#include <tiffin/layers.hpp>

#ifdef TIFFIN_EXPECT_PASS
using query = tiffin::through<"", tiffin::source_input, tiffin::named<tiffin::dense, "query_proj">>;
#else
using query = tiffin::named<tiffin::dense, "query_proj">;
#endif
tiffin::dot_gated<tiffin::signed_root_gate, tiffin::engram_key, query, tiffin::engram_value> block;
