// expect: tiffin: prepare<Block>.weights, backend.: Block
#include <tiffin/backend/reference/reference.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/prepare.hpp>

#ifdef TIFFIN_EXPECT_PASS
using block = tiffin::ffn<tiffin::gate<tiffin::silu>>;
#else
using block = tiffin::gate<tiffin::silu>;
#endif
auto prepare(const tiffin::weights& given) {
    return tiffin::prepare<block>(given, tiffin::reference<>{});
}
