// Every activation against the formula of docs/layers.md, as double, as float and in a register.
#include <tiffin/activation/gelu.hpp>
#include <tiffin/activation/gelu_tanh.hpp>
#include <tiffin/activation/identity.hpp>
#include <tiffin/activation/relu.hpp>
#include <tiffin/activation/relu_squared.hpp>
#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/activation/silu.hpp>
#include <tiffin/cpu/simd/lanes.hpp>

#include "support/bounded.hpp"
#include "support/doctest.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace activation_activation_test {
using tiffin_test::bounded;

namespace {

using reg = tiffin::simd_detail::lanes<xsimd::default_arch>;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// The formulas of docs/layers.md in other words and a wider format, and their values at +-infinity.
struct silu_case {
    static constexpr tiffin::silu phi{};
    static constexpr double at_minus_infinity = nan_value, at_infinity = infinity;
    static long double exact(long double z) { return z * (std::exp(z) / (std::exp(z) + 1)); }
};
struct sigmoid_case {
    static constexpr tiffin::sigmoid phi{};
    static constexpr double at_minus_infinity = 0, at_infinity = 1;
    static long double exact(long double z) { return (1 + std::tanh(z / 2)) / 2; }
};
struct gelu_case {
    static constexpr tiffin::gelu phi{};
    static constexpr double at_minus_infinity = nan_value, at_infinity = infinity;
    static long double exact(long double z) { return z * std::erfc(-z / std::sqrt(2.0L)) / 2; }
};
struct gelu_tanh_case {
    static constexpr tiffin::gelu_tanh phi{};
    static constexpr double at_minus_infinity = nan_value, at_infinity = infinity;
    static long double exact(long double z) {
        const long double pi = std::acos(-1.0L);
        return z / 2 * (1 + std::tanh(std::sqrt(2 / pi) * (z + 0.044715L * std::pow(z, 3.0L))));
    }
};
struct relu_case {
    static constexpr tiffin::relu phi{};
    static constexpr double at_minus_infinity = 0, at_infinity = infinity;
    static long double exact(long double z) { return (z + std::fabs(z)) / 2; }
};
struct relu_squared_case {
    static constexpr tiffin::relu_squared phi{};
    static constexpr double at_minus_infinity = 0, at_infinity = infinity;
    static long double exact(long double z) { return z > 0 ? z * z : 0 * z; }
};
struct identity_case {
    static constexpr tiffin::identity phi{};
    static constexpr double at_minus_infinity = -infinity, at_infinity = infinity;
    static long double exact(long double z) { return z; }
};

#define FOR_EACH_ACTIVATION \
    silu_case, sigmoid_case, gelu_case, gelu_tanh_case, relu_case, relu_squared_case, identity_case

// Around every bend and limit: fine near 0, +-150, denormals, the ends of exp in f32, powers of two.
std::vector<float> grid() {
    std::vector<float> all;
    for (int i = -1200; i <= 1200; ++i) all.push_back(static_cast<float>(i) / 64.0f);
    for (int i = -150; i <= 150; ++i) all.push_back(static_cast<float>(i));
    for (int e = -149; e <= 12; ++e) {
        all.push_back(std::ldexp(1.0f, e));
        all.push_back(std::ldexp(-1.5f, e));
    }
    for (const float v : {0.0f, -0.0f, 87.33f, 88.0f, 88.37f, 88.38f, 88.72f, 88.73f, 103.97f, 104.0f})
        all.insert(all.end(), {v, -v});
    return all;
}

std::vector<float> special_values() {
    const float inf = std::numeric_limits<float>::infinity();
    return {inf, -inf, std::numeric_limits<float>::quiet_NaN(), 1e30f, -1e30f, 3.4e38f, -3.4e38f};
}

// Calls check(z, phi(z)) for all of `values`, each in every lane, beside other values.
template <class Phi, class Check>
void in_registers(const Phi& phi, const std::vector<float>& values, const Check& check) {
    alignas(64) float in[reg::size], out[reg::size];
    for (std::size_t i = 0; i < values.size(); ++i) {
        for (std::size_t lane = 0; lane < reg::size; ++lane)
            in[lane] = values[(i + lane * 7) % values.size()];
        phi(reg::load_aligned(in)).store_aligned(out);
        for (std::size_t lane = 0; lane < reg::size; ++lane) check(in[lane], out[lane], lane);
    }
}

bool same_class(double a, double b) {
    return std::isnan(a) ? std::isnan(b) : a == b;
}

}  // namespace

// In double: at most 9 roundings and a library function of at most 1 ulp, each of a factor that is at
// most |z| or |phi(z)| in the result: 16 units of 2^-53 of either. (The cubic in gelu_tanh enters through
// tanh, and |s| / cosh(s)^2 is below 1/2.)
TEST_CASE_TEMPLATE("activations in double follow docs/layers.md", Case, FOR_EACH_ACTIVATION) {
    for (const float z : grid()) {
        const auto exact = static_cast<double>(Case::exact(static_cast<long double>(z)));
        const double computed = Case::phi(static_cast<double>(z));
        CAPTURE(z);
        CHECK(std::fabs(computed - exact) <=
              16 * 0x1p-53 * (std::fabs(static_cast<double>(z)) + std::fabs(exact)));
    }
}

TEST_CASE_TEMPLATE("activations in f32 are as near as f32 allows", Case, FOR_EACH_ACTIVATION) {
    using number = bounded;
    std::vector<float> values = grid();
    for (const float z : values) {
        CAPTURE(z);
        CHECK(Case::phi(number(z)).accepts(Case::phi(z)));
    }
    for (const float v : special_values()) values.push_back(v);
    std::size_t wrong = 0;
    in_registers(Case::phi, values, [&](float z, float computed, std::size_t lane) {
        if (Case::phi(number(z)).accepts(computed)) return;
        if (wrong++ == 0) FAIL_CHECK("phi(", z, ") = ", computed, " in lane ", lane);
    });
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("activations at infinity and NaN", Case, FOR_EACH_ACTIVATION) {
    const float inf = std::numeric_limits<float>::infinity();
    const auto check = [](double z, double computed) {
        const double wanted = std::isnan(z) ? z : z < 0 ? Case::at_minus_infinity : Case::at_infinity;
        CAPTURE(z);
        CAPTURE(computed);
        CHECK(same_class(wanted, computed));
    };
    for (const float z : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
        check(z, Case::phi(static_cast<double>(z)));
        check(z, Case::phi(z));
        in_registers(Case::phi, {z}, [&](float in, float out, std::size_t) { check(in, out); });
    }
}

}  // namespace activation_activation_test
