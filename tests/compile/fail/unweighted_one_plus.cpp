// expect: tiffin: unweighted<Norm>: this norm adds its weight to 1
#include <tiffin/norm/rms.hpp>
#include <tiffin/norm/rms_one_plus.hpp>
#include <tiffin/norm/unweighted.hpp>

#ifdef TIFFIN_EXPECT_PASS
constexpr tiffin::unweighted<tiffin::rms> norm{};
#else
constexpr tiffin::unweighted<tiffin::rms_one_plus> norm{};
#endif
