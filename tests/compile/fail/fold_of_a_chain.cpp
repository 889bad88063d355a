// expect: tiffin: fold\(source, weights\): the source reads x or an input of the call
#include <tiffin/cpu/fold.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/named.hpp>
#include <tiffin/source/through.hpp>
#include <tiffin/source/token_embedding.hpp>

// The first part of a chain reads what the chain reads, x; the later ones do not.
void use(const tiffin::weights& given) {
    using last = tiffin::named<tiffin::dense, "last">;
#ifdef TIFFIN_EXPECT_PASS
    static_cast<void>(tiffin::fold(tiffin::through<"s", tiffin::token_embedding, last>{}, given));
#else
    static_cast<void>(
        tiffin::fold(tiffin::through<"s", tiffin::named<tiffin::dense, "first">, last>{}, given));
#endif
}
