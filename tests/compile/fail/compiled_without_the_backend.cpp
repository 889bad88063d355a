// expect: tiffin: prepare<Block>.weights, backend.: the backend is only declared here
#define TIFFIN_COMPILED
#include <tiffin/compiled.hpp>
#ifdef TIFFIN_EXPECT_PASS
#    include <tiffin/cpu/simd/simd.hpp>
#endif

using own = tiffin::ffn<tiffin::gate<tiffin::relu>, tiffin::dense>;

bool prepare(const tiffin::weights& given) {
    return tiffin::try_prepare(tiffin::modulated<own, tiffin::folded_modulator>{}, given, tiffin::simd{})
        .ok();
}
