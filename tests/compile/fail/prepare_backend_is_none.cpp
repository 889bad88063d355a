// expect: tiffin: prepare<Block>.weights, backend.: the backend|no matching function for call to .prepare
// tiffin has no sentence of its own here yet: the compiler's is accepted beside it.
#include <tiffin/backend/reference/reference.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/prepare.hpp>

struct no_backend {};

#ifdef TIFFIN_EXPECT_PASS
using backend = tiffin::reference<>;
#else
using backend = no_backend;
#endif
auto prepare(const tiffin::weights& given) {
    return tiffin::prepare<tiffin::stem>(given, backend{});
}
