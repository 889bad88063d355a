// expect: tiffin: fold\(source, weights\): the source reads x or an input of the call
#include <tiffin/cpu/fold.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/token_embedding.hpp>

void use(const tiffin::weights& given) {
#ifdef TIFFIN_EXPECT_PASS
    static_cast<void>(tiffin::fold(tiffin::token_embedding{}, given));
#else
    static_cast<void>(tiffin::fold(tiffin::dense{}, given));
#endif
}
