// expect: tiffin/cuda.hpp needs a CUDA compiler
#if !defined(TIFFIN_EXPECT_PASS)
#    include "../../../cuda/include/tiffin/cuda.hpp"
#endif
