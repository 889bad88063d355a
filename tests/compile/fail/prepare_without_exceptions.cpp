// expect: tiffin: prepare.. throws|.prepare. is not a member of .tiffin|no member named .prepare. in
// tiffin has no sentence of its own here yet: the compiler's is accepted beside it.
// flags: -fno-exceptions
#include <tiffin/backend/reference/reference.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/prepare.hpp>

auto make(const tiffin::weights& given) {
#ifdef TIFFIN_EXPECT_PASS
    return tiffin::try_prepare<tiffin::stem>(given, tiffin::reference<>{});
#else
    return tiffin::prepare<tiffin::stem>(given, tiffin::reference<>{});
#endif
}
