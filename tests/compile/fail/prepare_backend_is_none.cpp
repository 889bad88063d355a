// expect: tiffin: prepare<Block>.weights, backend.: the backend
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
