// Products of training on the CPU's registers, factors in f32 and rounded to bf16, against sums in double.
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/train/simd.hpp>

#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace train_simd_product_test {
using namespace tiffin;

namespace {

struct sizes {
    std::size_t m, n, k;
};

template <class Format>
struct product {
    sizes s;
    bool a_transposed, b_transposed;
    std::vector<float> a, b;

    product(const sizes& of, bool ta, bool tb)
        : s(of), a_transposed(ta), b_transposed(tb), a(of.m * of.k), b(of.n * of.k) {
        tiffin_test::random_numbers random(static_cast<std::uint32_t>(of.m + 3 * of.n + 7 * of.k));
        random.fill(a, 1.0f);
        random.fill(b, 1.0f);
    }
    [[nodiscard]] float& at_a(std::size_t i, std::size_t k) {
        return a[a_transposed ? k * s.m + i : i * s.k + k];
    }
    [[nodiscard]] float& at_b(std::size_t j, std::size_t k) {
        return b[b_transposed ? k * s.n + j : j * s.k + k];
    }

    // c = 1 before it is added to.
    [[nodiscard]] std::vector<float> computed(bool add, std::size_t workers) const {
        using multiply = train_detail::simd_product<xsimd::default_arch, Format>;
        std::vector<float> c(s.m * s.n, 1.0f);
        aligned_buffer memory(multiply::bytes(s.m, s.n, s.k, workers) + 1);
        train_detail::training_call<float> call;
        call.tokens = s.m;
        call.workers = workers;
        const openmp threads{static_cast<int>(workers)};
        call.execute = threads;
        multiply::run(call, s.m, s.n, s.k, {a.data(), a_transposed ? s.m : s.k, a_transposed},
                      {b.data(), b_transposed ? s.n : s.k, b_transposed}, c.data(), add, memory.data());
        return c;
    }
    static double rounded(float v) {
        return static_cast<double>(std::is_same_v<Format, bf16> ? bf16_to_f32(f32_to_bf16(v)) : v);
    }
};

template <class Format>
void check_product(const sizes& s, bool ta, bool tb) {
    product<Format> p(s, ta, tb);
    const std::vector<float> plain = p.computed(false, 1), added = p.computed(true, 1);
    for (std::size_t i = 0; i < s.m; ++i)
        for (std::size_t j = 0; j < s.n; ++j) {
            double sum = 0, size = 0;
            for (std::size_t k = 0; k < s.k; ++k) {
                const double term = p.rounded(p.at_a(i, k)) * p.rounded(p.at_b(j, k));
                sum += term;
                size += std::fabs(term);
            }
            // k additions, each with one rounding of a partial sum; with pairs of bf16 two per step at most.
            const double bound = static_cast<double>(s.k + 2) * 0x1p-23 * (size + 1);
            const double c = static_cast<double>(plain[i * s.n + j]),
                         d = static_cast<double>(added[i * s.n + j]);
            REQUIRE(std::fabs(c - sum) <= bound);
            REQUIRE(std::fabs(d - sum - 1) <= bound);
        }
    for (const std::size_t workers : {std::size_t{2}, std::size_t{5}})
        CHECK(p.computed(true, workers) == added);
}

// More rows, and a longer sum, than a block has: both at once only in the full form.
#if defined(TIFFIN_TEST_SMALL)
const std::vector<sizes> all_sizes{{1, 1, 1},      {7, 33, 5},    {3, 260, 255}, {13, 300, 257},
                                   {70, 77, 1025}, {530, 40, 31}, {1100, 17, 9}, {6, 40, 1300}};
#else
const std::vector<sizes> all_sizes{{1, 1, 1},      {7, 33, 5},      {3, 260, 255},
                                   {13, 300, 257}, {70, 77, 1025},  {530, 40, 31},
                                   {1100, 257, 9}, {200, 40, 1300}, {590, 33, 1100}};
#endif

}  // namespace

TEST_CASE_TEMPLATE("simd product: sums of products, whole or added, however the factors lie", Format, f32,
                   bf16) {
    for (const sizes& s : all_sizes)
        for (const bool ta : {false, true})
            for (const bool tb : {false, true}) {
                CAPTURE(s.m);
                CAPTURE(s.n);
                CAPTURE(s.k);
                check_product<Format>(s, ta, tb);
            }
}

// A step may have fewer tokens than it was prepared for.
TEST_CASE_TEMPLATE("simd product: fewer rows want no more memory", Format, f32, bf16) {
    using of = train_detail::simd_product<xsimd::default_arch, Format>;
    for (const std::size_t n : {16u, 256u, 300u})
        for (const std::size_t k : {16u, 960u, 1500u})
            for (std::size_t m = 1; m < 1300; m += 7)
                CHECK(of::bytes(m, n, k, 2) <= of::bytes(m + 7, n, k, 2));
}

TEST_CASE_TEMPLATE("simd product: NaN and infinity are not lost", Format, f32, bf16) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
        product<Format> p({9, 35, 7}, false, false);
        p.at_b(34, 6) = bad;
        const std::vector<float> c = p.computed(false, 2);
        for (std::size_t i = 0; i < 9; ++i)
            for (std::size_t j = 0; j < 35; ++j) CHECK(std::isfinite(c[i * 35 + j]) == (j != 34));
    }
}

// A product of numbers in [-1, 1) has an error of 2^-8 of its size by two roundings; sums of them err by that times the
// sum of sizes at most. Held against the f32 step: a few of them one after the other, 5 % of the largest gradient.
TEST_CASE("training with products in bf16: near the step in f32, and other bits") {
    constexpr std::size_t d = 40, f = 100, tokens = 30;
    const auto all = tiffin_test::tensor_set::of(swiglu{}, {{d, f, 9}, {}, {}, ~0u, 3});
    std::vector<float> x(tokens * d), dy(tokens * d), y(tokens * d), y16(tokens * d), dx(tokens * d),
        dx16(tokens * d);
    tiffin_test::random_numbers random(5);
    random.fill(x, 1.0f);
    random.fill(dy, 1.0f);
    auto exact = prepare_training<swiglu>(all.given(), simd<>{});
    auto rounded = prepare_training<swiglu>(all.given(), simd<bf16>{});
    exact.forward(x, {}, y);
    rounded.forward(x, {}, y16);
    exact.backward(dy, {.x = {dx.data(), tokens, d}});
    rounded.backward(dy, {.x = {dx16.data(), tokens, d}});
    const auto near = [](const float* a, const float* b, std::size_t n) {
        float largest = 0, apart = 0;
        for (std::size_t i = 0; i < n; ++i) {
            largest = std::max(largest, std::fabs(a[i]));
            apart = std::max(apart, std::fabs(a[i] - b[i]));
        }
        CHECK(apart > 0);
        CHECK(apart < 0.05f * largest);
    };
    near(y.data(), y16.data(), y.size());
    near(dx.data(), dx16.data(), dx.size());
    const auto ours = rounded.gradients(), theirs = exact.gradients();
    for (std::size_t i = 0; i < ours.size(); ++i)
        if (ours[i].shape.rank() == 2) near(theirs[i].data, ours[i].data, ours[i].shape.elements());
}

}  // namespace train_simd_product_test
