// expect: tiffin: policies..: this is neither a source nor an activation
#include <tiffin/activation/silu.hpp>
#include <tiffin/plan/compose.hpp>

struct nothing {};
#ifdef TIFFIN_EXPECT_PASS
constexpr tiffin::policies known{tiffin::policy<tiffin::silu>("silu")};
#else
constexpr tiffin::policies known{tiffin::policy<nothing>("nothing")};
#endif

bool composes() {
    return tiffin::compose("silu", known).ok();
}
