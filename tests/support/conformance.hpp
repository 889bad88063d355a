// Every backend held against reference<bounded>: any sizes, formats, alignments, ways of giving x and y. A suite that
// includes this is linked with conformance.cpp; with gradient_checks.cpp where the gradients are what is checked.
#pragma once

// Of types, their gradients are a program of its own; of texts, what TIFFIN_TEST_GRADIENTS=1 in the environment asks for.
#if defined(TIFFIN_TEST_GRADIENTS)
#    include "support/gradients.hpp"
#else
#    include "support/composition.hpp"
#endif

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <cstddef>

namespace tiffin_test {

#if defined(TIFFIN_TEST_GRADIENTS)
template <class Block>
learning compose_on_both(std::string name, const Block& block = {}) {
    return learn(std::move(name), block);
}
inline void check(const learning& what) {
    check_gradients(what);
}
#else
// All cases of a composition, on all its contenders.
void check_conformance(const composition& what);

struct numbers_compared {
    std::size_t compared = 0;
    std::size_t uncertain = 0;  // of which the bound does not say whether they are finite
};
// One case of a few tokens, of random sizes. Throws what prepare() refuses.
numbers_compared check_random_case(const composition& what, random_numbers& random);

// NaN, infinities and large numbers, put into one place of x, of each tensor, at the sizes where
// registers are partly filled. Not finite where the formula in f32 is not, and only there.
void check_special_values(const composition& what);

// All that there is, which is what nearly every composition is for.
void check(const composition& what);
#endif

}  // namespace tiffin_test
