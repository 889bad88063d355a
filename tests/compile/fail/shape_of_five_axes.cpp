// expect: tiffin: shape.*: a tensor has at most four axes
#include <tiffin/tensor.hpp>

#ifdef TIFFIN_EXPECT_PASS
constexpr tiffin::shape sizes{1, 2, 3, 4};
#else
constexpr tiffin::shape sizes{1, 2, 3, 4, 5};
#endif
static_assert(sizes.rank() == 4);
