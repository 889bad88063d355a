// Every norm against the formula of docs/layers.md, as double, as float and in a register.
#include <tiffin/cpu/simd/lanes.hpp>
#include <tiffin/norm/gaussian_top_k.hpp>
#include <tiffin/norm/l2.hpp>
#include <tiffin/norm/no_norm.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/norm/rms_cast_first.hpp>
#include <tiffin/norm/rms_one_plus.hpp>

#include "support/bounded.hpp"
#include "support/doctest.hpp"
#include "support/random.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace norm_norm_test {
using tiffin_test::bounded;

namespace {

using reg = tiffin::simd_detail::lanes<xsimd::default_arch>;

// What docs/layers.md says of element i of a row.
struct rms_case {
    using norm = tiffin::rms;
    static constexpr double eps = 1e-5;
    static constexpr bool weighted = true;
    static long double exact(long double x, long double w, long double squares, long double n,
                             long double e) {
        return x / std::sqrt(squares / n + e) * w;
    }
};
struct rms_cast_first_case : rms_case {
    using norm = tiffin::rms_cast_first;
    static constexpr double eps = 1e-6;
};
struct rms_one_plus_case {
    using norm = tiffin::rms_one_plus;
    static constexpr double eps = 1e-6;
    static constexpr bool weighted = true;
    static long double exact(long double x, long double w, long double squares, long double n,
                             long double e) {
        return x / std::sqrt(squares / n + e) * (1 + w);
    }
};
struct l2_case {
    using norm = tiffin::l2;
    static constexpr double eps = 1e-6;
    static constexpr bool weighted = false;
    static long double exact(long double x, long double, long double squares, long double, long double e) {
        return x / (std::sqrt(squares) + e);
    }
};

#define FOR_EACH_NORM rms_case, rms_cast_first_case, rms_one_plus_case, l2_case

struct row {
    std::vector<float> x, w;
    row(std::size_t n, float scale, std::uint32_t seed) : x(n), w(n) {
        tiffin_test::random_numbers random(seed);
        random.fill(x, scale);
        random.fill(w);
    }
};

// Element by element, as backends do it.
template <class Scalar, class Norm>
std::vector<Scalar> normalise(const Norm& norm, const row& r) {
    std::vector<Scalar> y;
    Scalar squares(0);
    for (const float v : r.x) {
        const Scalar s(v);
        squares = squares + s * s;
    }
    const Scalar scale = norm.scale(squares, Scalar(static_cast<float>(r.x.size())));
    for (std::size_t i = 0; i < r.x.size(); ++i) y.push_back(norm(Scalar(r.x[i]), scale, Scalar(r.w[i])));
    return y;
}

template <class Case>
void check_row(const typename Case::norm& norm, double eps, const row& r) {
    long double squares = 0;
    for (const float v : r.x) squares += static_cast<long double>(v) * static_cast<long double>(v);
    const auto n = static_cast<long double>(r.x.size());
    const auto as_double = normalise<double>(norm, r);
    const auto as_float = normalise<float>(norm, r);
    const auto bound = normalise<bounded>(norm, r);
    const auto squares_f = static_cast<float>(squares);
    const float scale = norm.scale(squares_f, static_cast<float>(r.x.size()));
    for (std::size_t i = 0; i < r.x.size(); ++i) {
        const auto exact = static_cast<double>(Case::exact(static_cast<long double>(r.x[i]),
                                                           static_cast<long double>(r.w[i]), squares, n,
                                                           static_cast<long double>(eps)));
        CAPTURE(i);
        // n + 8 roundings, every one of a factor of the result; 1 + w may cancel, its rounding is of 1.
        const double size = std::fabs(exact) + std::fabs(as_double[i]) +
                            (Case::weighted ? std::fabs(exact / (1 + static_cast<double>(r.w[i]))) : 0);
        CHECK(std::fabs(as_double[i] - exact) <= (static_cast<double>(n) + 8) * 0x1p-53 * size);
        CHECK(bound[i].accepts(as_float[i]));
        alignas(64) float lanes[reg::size];
        norm(reg(r.x[i]), reg(scale), reg(r.w[i])).store_aligned(lanes);
        for (const float lane : lanes) CHECK(bound[i].accepts(lane));
    }
}

}  // namespace

TEST_CASE_TEMPLATE("norms follow docs/layers.md", Case, FOR_EACH_NORM) {
    const typename Case::norm norm;
    CHECK(static_cast<double>(norm.eps) == doctest::Approx(Case::eps).epsilon(1e-7));  // f32 of a decimal
    CHECK(Case::norm::weighted == Case::weighted);
    std::uint32_t seed = 0;
    // Small rows too, where eps matters most.
    for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 300u})
        for (const float scale : {1.0f, 1e-3f, 1e-6f, 1e3f, 1e15f}) {
            CAPTURE(n);
            CAPTURE(scale);
            check_row<Case>(norm, static_cast<double>(norm.eps), row(n, scale, ++seed));
        }
}

TEST_CASE_TEMPLATE("norms take any eps", Case, FOR_EACH_NORM) {
    typename Case::norm norm;
    for (const float eps : {0.5f, 1e-12f}) {
        norm.eps = eps;
        check_row<Case>(norm, static_cast<double>(eps), row(9, 1.0f, 5));
    }
}

TEST_CASE_TEMPLATE("norms leave a row of zeros as it is", Case, FOR_EACH_NORM) {
    row r(7, 1.0f, 6);
    r.x.assign(7, 0.0f);
    for (const float v : normalise<float>(typename Case::norm{}, r)) CHECK(v == 0);
    for (const double v : normalise<double>(typename Case::norm{}, r)) CHECK(v == 0);
    check_row<Case>({}, Case::eps, r);
}

// The numbers of the formulas, worked by hand: mean square (9 + 16) / 2 = 12.5, norm 5.
TEST_CASE("norms by hand") {
    row r(2, 1.0f, 7);
    r.x = {3, 4};
    r.w = {2, 0.5f};
    const auto near = [](double v) { return doctest::Approx(v).epsilon(1e-15); };  // a few of 2^-53
    CHECK(normalise<double>(tiffin::rms{3.5f}, r)[0] == near(3.0 / 4 * 2));
    CHECK(normalise<double>(tiffin::rms{3.5f}, r)[1] == near(4.0 / 4 * 0.5));
    CHECK(normalise<double>(tiffin::rms_cast_first{3.5f}, r)[0] == near(3.0 / 4 * 2));
    CHECK(normalise<double>(tiffin::rms_one_plus{3.5f}, r)[1] == near(4.0 / 4 * 1.5));
    CHECK(normalise<double>(tiffin::l2{1.0f}, r)[0] == near(3.0 / 6));
    CHECK(normalise<double>(tiffin::l2{1.0f}, r)[1] == near(4.0 / 6));
    CHECK(normalise<double>(tiffin::no_norm{}, r)[0] == 3.0);
    CHECK(normalise<float>(tiffin::no_norm{}, r)[1] == 4.0f);
}

// Of a row with mean 0: the deviation of these is sqrt(24 / 4), about 2.45.
TEST_CASE("gaussian_top_k by hand") {
    row r(4, 1.0f, 8);
    r.x = {4, -2, -2, 0};
    const tiffin::gaussian_top_k most{0.5f}, none{2.0f};
    CHECK(normalise<double>(most, r)[0] ==
          doctest::Approx(4 - std::sqrt(1.5)).epsilon(1e-15));  // a few of 2^-53
    for (const std::size_t i : {1u, 2u, 3u}) CHECK(normalise<double>(most, r)[i] == 0);
    for (const double v : normalise<double>(none, r)) CHECK(v == 0);
    r.x.assign(4, 0.0f);
    for (const float v : normalise<float>(tiffin::gaussian_top_k{}, r)) CHECK(v == 0);
}

TEST_CASE("gaussian_top_k follows docs/layers.md, and lets about as many pass as it says") {
    std::uint32_t seed = 40;
    for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 300u})
        for (const float scale : {1.0f, 1e-6f, 1e15f})
            for (const float deviations : {0.5f, -1.0f, 1.6448536f}) {
                const row r(n, scale, ++seed);
                const tiffin::gaussian_top_k norm{deviations};
                double squares = 0;
                for (const float v : r.x) squares += static_cast<double>(v) * static_cast<double>(v);
                const double least =
                    static_cast<double>(deviations) * std::sqrt(squares / static_cast<double>(n));
                const auto as_double = normalise<double>(norm, r);
                const auto as_float = normalise<float>(norm, r);
                const auto bound = normalise<bounded>(norm, r);
                for (std::size_t i = 0; i < n; ++i) {
                    CAPTURE(i);
                    const double x = static_cast<double>(r.x[i]);
                    // n + 4 roundings, each of the threshold or of the difference.
                    CHECK(std::fabs(as_double[i] - std::fmax(x - least, 0.0)) <=
                          (static_cast<double>(n) + 4) * 0x1p-53 * (std::fabs(x) + std::fabs(least)));
                    CHECK(bound[i].accepts(as_float[i]));
                }
            }
    CHECK(tiffin::gaussian_top_k::passing(0.05).deviations == tiffin::gaussian_top_k{}.deviations);
    CHECK(tiffin::gaussian_top_k::passing(0.5).deviations == doctest::Approx(0).epsilon(1e-15));
    CHECK(tiffin::gaussian_top_k::passing(0.75).deviations == doctest::Approx(-0.67448975).epsilon(1e-7));
    // Twelve uniform numbers added are nearly normal.
    tiffin_test::random_numbers random(99);
    std::vector<float> twelve(12);
    row r(20000, 1.0f, 9);
    for (float& v : r.x) {
        random.fill(twelve);
        v = 0;
        for (const float one : twelve) v += one;
    }
    std::size_t passed = 0;
    for (const float v : normalise<float>(tiffin::gaussian_top_k{}, r)) passed += v > 0;
    CHECK(passed > 900);  // of 20,000 by 5 %: 1,000, with a deviation of 31
    CHECK(passed < 1100);
}

}  // namespace norm_norm_test
