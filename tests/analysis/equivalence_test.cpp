// The width at which StructMoE has the parameters of a dense block, and its published figure.
#include <tiffin/analysis/equivalence.hpp>

#include "support/doctest.hpp"

#include <cstddef>
#include <initializer_list>

namespace analysis_equivalence_test {
using namespace tiffin;

namespace {

// W_1, W_2, A and B of every expert, the router. Whole numbers below 2^53, so everything is exact.
double structmoe_parameters(std::size_t d, std::size_t f, std::size_t L, std::size_t r) {
    return static_cast<double>(2 * f * d + L * (r * d + f * r) + L * d);
}

}  // namespace

// The widest block that has no more parameters than the dense one.
TEST_CASE("equivalence: structmoe's width is the widest with no more parameters") {
    static_assert(structmoe_width_at_equal_parameters(2048, 7168, 16, 16) == 6618);  // as published
    for (const std::size_t d : {1u, 3u, 64u, 511u, 2048u})
        for (const std::size_t f : {1u, 7u, 250u, 7168u, 7169u})
            for (const std::size_t L : {0u, 1u, 5u, 16u})
                for (const std::size_t r : {0u, 1u, 2u, 17u}) {
                    CAPTURE(d);
                    CAPTURE(f);
                    CAPTURE(L);
                    CAPTURE(r);
                    const std::size_t width = structmoe_width_at_equal_parameters(d, f, L, r);
                    const auto dense = static_cast<double>(2 * d * f);
                    if (width > 0) CHECK(structmoe_parameters(d, width, L, r) <= dense);
                    CHECK(structmoe_parameters(d, width + 1, L, r) > dense);
                    if (L == 0) CHECK(width == f);
                }
    CHECK(structmoe_width_at_equal_parameters(2048, 100, 16, 400) == 0);  // the experts are more already
    CHECK(structmoe_width_at_equal_parameters(2048, 136, 16, 16) == 0);   // d L (r + 1) = 2 d f
    CHECK(structmoe_width_at_equal_parameters(0, 100, 0, 16) == 0);
    CHECK(structmoe_width_at_equal_parameters(0, 100, 16, 16) == 0);
}

}  // namespace analysis_equivalence_test
