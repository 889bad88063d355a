// expect: tiffin: prepare<Block>.weights, backend.: the backend
#include <tiffin/call/prepare.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

struct no_backend {};

#ifdef TIFFIN_EXPECT_PASS
using backend = tiffin::reference<>;
#else
using backend = no_backend;
#endif
auto prepare(const tiffin::weights& given) {
    return tiffin::prepare<tiffin::stem>(given, backend{});
}
