// expect: tiffin: a source whose policy a text names has no formula of its own
#include <tiffin/plan/compose.hpp>
#include <tiffin/source/normed.hpp>

// A norm, and a formula that is not the norm's alone.
template <class Norm, class Source>
struct norm_and_row : tiffin::normed<Norm, Source> {
    using formula_is = void;
    template <class Place, class Value>
    auto operator()(const Place& at, const Value& v) const {
        return tiffin::normed<Norm, Source>::operator()(at, v) + v;
    }
};
using norm = tiffin::norm_argument<0, false>;

#ifdef TIFFIN_EXPECT_PASS
constexpr tiffin::policies known{tiffin::policy<tiffin::normed<norm, tiffin::argument<1>>>("normed")};
#else
constexpr tiffin::policies known{tiffin::policy<norm_and_row<norm, tiffin::argument<1>>>("normed")};
#endif

bool composes() {
    return tiffin::compose("normed", known).ok();
}
