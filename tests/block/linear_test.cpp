// One product of any width: against a sum in double, and what calls of it are told.
#include <tiffin/block/linear.hpp>

#include <tiffin/analysis/cost.hpp>
#include <tiffin/block/branch.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/runtime/any_layer.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace block_linear_test {
using namespace tiffin;
using tiffin_test::random_rows;

namespace {

template <class Backend>
void check(const Backend& backend, std::size_t outputs, std::size_t inputs, double error) {
    CAPTURE(outputs);
    CAPTURE(inputs);
    const std::vector<float> w = random_rows(outputs, inputs, 3), b = random_rows(1, outputs, 4);
    weights given;
    given.add("proj.weight", w.data(), {outputs, inputs}).add("proj.bias", b.data(), {outputs});
    const any_layer layer(prepare<linear<>>(given, backend));
    CHECK(layer.d_model() == inputs);
    CHECK(layer.outputs() == outputs);
    for (const std::size_t tokens : {1u, 3u, 50u}) {
        const std::vector<float> x = random_rows(tokens, inputs, 5);
        std::vector<float> y(tokens * outputs);
        workspace memory = layer.make_workspace(tokens, 1);
        REQUIRE(layer.try_call(x, token_inputs{}, y, memory).ok());
        std::size_t beyond = 0;
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t o = 0; o < outputs; ++o) {
                double wanted = static_cast<double>(b[o]), size = std::fabs(wanted);
                for (std::size_t k = 0; k < inputs; ++k) {
                    const double term =
                        static_cast<double>(x[t * inputs + k]) * static_cast<double>(w[o * inputs + k]);
                    wanted += term;
                    size += std::fabs(term);
                }
                beyond += !(std::fabs(static_cast<double>(y[t * outputs + o]) - wanted) <= size * error);
            }
        CHECK(beyond == 0);
    }
}

}  // namespace

TEST_CASE("linear: wider and narrower than what it reads, on every backend") {
    // A rounding per term, and of y.
    const auto rounded = [](std::size_t inputs) { return static_cast<double>(inputs + 2) * 0x1p-24; };
    for (const auto& [outputs, inputs] :
         {std::pair<std::size_t, std::size_t>{77, 20}, {5, 301}, {33, 33}, {1, 7}}) {
        check(reference<>{}, outputs, inputs, 0x1p-24);
        check(eigen{}, outputs, inputs, rounded(inputs));
        check(simd<>{}, outputs, inputs, rounded(inputs));
    }
    // Weights and activations of 8 bits: half a step of 1/127 of the largest of 32 each; random rows are up to 1.
    check(simd<q8_0>{}, 50, 64, 2 * 64 * (0.5 / 127));
}

TEST_CASE("linear: what calls are told, and y that is x") {
    const std::vector<float> w = random_rows(9, 4, 3);
    weights given;
    given.add("head.weight", w.data(), {9, 4});
    auto layer = prepare<linear<"head">>(given, simd<>{});
    const std::vector<float> x = random_rows(2, 4, 5);
    std::vector<float> narrow(2 * 8), wide(2 * 9);
    const status s = layer.try_call(x, token_inputs{}, narrow);
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().message() == "y: has 16 numbers, not a multiple of outputs = 9");
    CHECK(layer.try_call(x, token_inputs{}, wide).ok());
    std::vector<float> both(2 * 9 + 4);
    CHECK(layer.try_call(std::span<const float>(both).first(8), token_inputs{}, std::span(both).first(18))
              .failure()
              .code == errc::overlap);
    // A square one may be computed in place, as any block.
    weights square;
    square.add("proj.weight", w.data(), {4, 4});
    auto in_place = prepare<linear<>>(square, simd<>{});
    std::vector<float> y(8), onto = x;
    CHECK(in_place.try_call(x, token_inputs{}, y).ok());
    CHECK(in_place.try_call(onto, token_inputs{}, onto).ok());
    CHECK(onto == y);
}

TEST_CASE("linear: inside another block it is as wide as that") {
    constexpr tiffin_test::sizes sizes{.d_model = 12, .d_ff = 20, .vocab = 3};
    using block = parallel<swiglu, linear<"beside">>;
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(block{}), {sizes, {}, {}, ~0u, 29});
    CHECK(prepare<block>(tensors.given(), simd<>{}).outputs() == sizes.d_model);
    const block_cost told = cost<linear<>>({.d_model = 12, .outputs = 40});
    CHECK(told.parameters == 12 * 40);  // optional tensors are not counted
    CHECK(told.matrix_flops_per_token == 2.0 * 12 * 40);
}

}  // namespace block_linear_test
