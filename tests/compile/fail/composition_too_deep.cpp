// expect: tiffin: a composition is more than 32 sources deep
#include <tiffin/tiffin.hpp>

template <int Depth>
struct nested {
    using type = tiffin::gate<tiffin::silu, typename nested<Depth - 1>::type>;
};
template <>
struct nested<1> {
    using type = tiffin::dense;
};

// The chain, the source, and those in it.
#ifdef TIFFIN_EXPECT_PASS
using block = tiffin::ffn<nested<31>::type>;
#else
using block = tiffin::ffn<nested<32>::type>;
#endif
auto made(const tiffin::weights& w) {
    return tiffin::try_prepare<block>(w, tiffin::simd<>{});
}
