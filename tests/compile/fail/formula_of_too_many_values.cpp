// expect: tiffin: a formula holds more than 32 values at a time
#include <tiffin/tiffin.hpp>

#include <cstddef>
#include <tuple>

// a - (b - (c - ...)): each waits for those behind it.
template <class Rest>
struct difference {
    tiffin::gate<tiffin::silu, tiffin::source_input> first{};
    Rest rest{};
    constexpr std::tuple<const tiffin::gate<tiffin::silu, tiffin::source_input>&, const Rest&> parts()
        const noexcept {
        return {first, rest};
    }
    static constexpr double flops() noexcept { return 1; }
    auto operator()(const auto& a, const auto& b) const { return a - b; }
};
template <std::size_t Values>
struct nested {
    using type = difference<typename nested<Values - 1>::type>;
};
template <>
struct nested<1> {
    using type = tiffin::source_input;
};

#ifdef TIFFIN_EXPECT_PASS
using block = nested<32>::type;
#else
using block = nested<33>::type;
#endif
auto made(const tiffin::weights& w) {
    return tiffin::try_prepare<block>(w, tiffin::simd<>{});
}
