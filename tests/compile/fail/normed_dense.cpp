// expect: tiffin: normed<Norm, Source>: the source multiplies x, and its row is not known before
#include <tiffin/norm/l2.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/normed.hpp>
#include <tiffin/source/token_embedding.hpp>

#ifdef TIFFIN_EXPECT_PASS
tiffin::normed<tiffin::l2, tiffin::token_embedding> source;
#else
tiffin::normed<tiffin::l2, tiffin::dense> source;
#endif
