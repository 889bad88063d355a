// expect: tiffin: a source reads more than 16 tensors and parts; make it of several
#include <tiffin/tiffin.hpp>

#include <cstddef>
#include <tuple>
#include <utility>

template <std::size_t I>
consteval tiffin::fixed_string letter() {
    const char text[2] = {static_cast<char>('a' + I), 0};
    return tiffin::fixed_string(text);
}
template <std::size_t I>
using row = tiffin::named<tiffin::token_embedding, letter<I>()>;
template <class>
struct product;
template <std::size_t... I>
struct product<std::index_sequence<I...>> {
    std::tuple<row<I>...> rows{};
    constexpr const auto& parts() const noexcept { return rows; }
    static constexpr double flops() noexcept { return sizeof...(I); }
    auto operator()(const auto&... values) const { return (... * values); }
};

#ifdef TIFFIN_EXPECT_PASS
using of_all = product<std::make_index_sequence<16>>;
#else
using of_all = product<std::make_index_sequence<17>>;
#endif
using block = tiffin::ffn<tiffin::gate<tiffin::silu>, of_all>;
auto made(const tiffin::weights& w) {
    return tiffin::try_prepare<block>(w, tiffin::simd<>{});
}
