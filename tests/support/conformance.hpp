// Every backend held against reference<bounded>: any sizes, formats, alignments, ways of giving x and y. A suite that
// includes this is linked with conformance.cpp; with gradient_checks.cpp where the gradients are what is checked.
#pragma once

// The same compositions, their gradients.
#if defined(TIFFIN_TEST_GRADIENTS)
#    include "support/gradients.hpp"
#else
#    include "support/composition.hpp"
#endif

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <cstddef>

namespace tiffin_test {

// All cases of a composition, on all its contenders.
void check_conformance(const composition& what);

#if !defined(TIFFIN_TEST_GRADIENTS)
struct numbers_compared {
    std::size_t compared = 0;
    std::size_t uncertain = 0;  // of which the bound does not say whether they are finite
};
// One case of a few tokens, of random sizes. Throws what prepare() refuses.
numbers_compared check_random_case(const composition& what, random_numbers& random);

// NaN, infinities and large numbers, put into one place of x, of each tensor, at the sizes where
// registers are partly filled. Not finite where the formula in f32 is not, and only there.
void check_special_values(const composition& what);
#endif

// All that there is, which is what nearly every composition is for.
void check(const composition& what);

}  // namespace tiffin_test
