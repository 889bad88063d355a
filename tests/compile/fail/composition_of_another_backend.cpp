// expect: tiffin: a composition of a text runs on the backend whose kind of number it was made for
#include <tiffin/call/prepare.hpp>
#include <tiffin/plan/composition.hpp>
#include <tiffin/reference/reference.hpp>

#ifdef TIFFIN_EXPECT_PASS
using number = double;
#else
using number = float;
#endif

void prepare(const tiffin::composition<tiffin::reference<number>::machine>& block,
             const tiffin::weights& given) {
    static_cast<void>(tiffin::try_prepare(block, given, tiffin::reference<>{}));
}
