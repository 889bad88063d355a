// The named layers on every CPU backend: values, guards, formats, special numbers.
#include <tiffin/layers.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"

namespace engine_conformance_named_test {
using tiffin_test::check;
using tiffin_test::compose;
using tiffin_test::compose_with_reference;

TEST_CASE("conformance: mlp") {
    check(compose_with_reference<tiffin::mlp>("mlp"));
}
TEST_CASE("conformance: swiglu") {
    check(compose<tiffin::swiglu>("swiglu"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: geglu") {
    check(compose<tiffin::geglu>("geglu"));
}
TEST_CASE("conformance: reglu") {
    check(compose<tiffin::reglu>("reglu"));
}
#endif
TEST_CASE("conformance: stem") {
    check(compose<tiffin::stem>("stem"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: stem_gate") {
    check(compose<tiffin::stem_gate>("stem_gate"));
}
#endif
TEST_CASE("conformance: stem_hybrid") {
    check(compose_with_reference<tiffin::stem_hybrid>("stem_hybrid"));
}

}  // namespace engine_conformance_named_test
