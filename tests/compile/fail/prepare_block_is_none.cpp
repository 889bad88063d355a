// expect: tiffin: prepare<Block>.weights, backend.: Block
#include <tiffin/call/prepare.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#ifdef TIFFIN_EXPECT_PASS
using block = tiffin::ffn<tiffin::gate<tiffin::silu>>;
#else
using block = tiffin::silu;
#endif
auto prepare(const tiffin::weights& given) {
    return tiffin::prepare<block>(given, tiffin::reference<>{});
}
