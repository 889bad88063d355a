// The policies that texts of the tests may name: the tests' own, a line each, and the library's.
#pragma once

#include <tiffin/all_policies.hpp>

#include "support/combinators.hpp"

namespace tiffin_test {

inline constexpr tiffin::policies known_policies{
    tiffin::policy<gated_sum>("gated_sum"),
    tiffin::policy<damped>("damped"),
    tiffin::policy<tempered_top_2>("tempered_top_2"),
    tiffin::policy<blend<tiffin::argument<0>, tiffin::argument<1>>>("blend"),
    tiffin::policy<times_bank<tiffin::argument<0>, tiffin::router_argument<1>>>("times_bank"),
    tiffin::all_policies};

template <class Numbers>
tiffin::composition<Numbers> compose_known(const std::string& text) {
    return tiffin::compose<Numbers>(text, known_policies).or_throw();
}

}  // namespace tiffin_test
