// expect: tiffin: prepare.. throws
// flags: -fno-exceptions
#include <tiffin/call/prepare.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

auto make(const tiffin::weights& given) {
#ifdef TIFFIN_EXPECT_PASS
    return tiffin::try_prepare<tiffin::stem>(given, tiffin::reference<>{});
#else
    return tiffin::prepare<tiffin::stem>(given, tiffin::reference<>{});
#endif
}
