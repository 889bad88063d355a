// expect: tiffin: project<Norm, Source>: the first argument is not a norm; a norm has `weighted`
#include <tiffin/layers.hpp>
#include <tiffin/norm/no_norm.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::project<tiffin::no_norm, tiffin::dense> output;
#else
tiffin::project<tiffin::dense> output;
#endif
