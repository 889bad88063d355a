// The fusions: what they compute, in every scalar, and which argument is which.
#include <tiffin/cpu/simd/lanes.hpp>
#include <tiffin/fusion/add.hpp>
#include <tiffin/fusion/multiply.hpp>

#include "support/doctest.hpp"

#include <cmath>
#include <limits>

namespace fusion_fusion_test {

namespace {

using reg = tiffin::simd_detail::lanes<xsimd::default_arch>;

template <class Fusion>
void check(double g, double u, double wanted) {
    CAPTURE(g);
    CAPTURE(u);
    const auto same = [&](double computed) {
        CHECK((std::isnan(wanted) ? std::isnan(computed) : computed == wanted));
    };
    same(Fusion{}(g, u));
    same(Fusion{}(static_cast<float>(g), static_cast<float>(u)));
    alignas(64) float out[reg::size];
    Fusion{}(reg(static_cast<float>(g)), reg(static_cast<float>(u))).store_aligned(out);
    for (const float v : out) same(v);
}

}  // namespace

// All numbers here are small multiples of powers of two: sums and products are exact in f32.
TEST_CASE("add") {
    const double inf = std::numeric_limits<double>::infinity();
    check<tiffin::add>(1.5, -0.25, 1.25);
    check<tiffin::add>(0, 0, 0);
    check<tiffin::add>(-3, 0, -3);
    check<tiffin::add>(inf, 1, inf);
    check<tiffin::add>(inf, -inf, inf - inf);
    CHECK(tiffin::add::flops() == 1);
}

TEST_CASE("multiply") {
    const double inf = std::numeric_limits<double>::infinity();
    check<tiffin::multiply>(1.5, -0.25, -0.375);
    check<tiffin::multiply>(0, 5, 0);
    check<tiffin::multiply>(-3, 1, -3);
    check<tiffin::multiply>(-inf, 2, -inf);
    check<tiffin::multiply>(inf, 0, inf * 0);
    CHECK(tiffin::multiply::flops() == 1);
}

}  // namespace fusion_fusion_test
