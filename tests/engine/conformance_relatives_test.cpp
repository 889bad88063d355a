// Layers of other papers that the grammar says too: docs/layers.md, "Relatives".
#include <tiffin/layers.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"

using tiffin_test::check;
using tiffin_test::compose;
using tiffin_test::compose_with_reference;

namespace {

// MoRT's residual of rows that were mixed elsewhere.
struct given_of_three : tiffin::given_modulator<> {
    constexpr given_of_three() { num_layers = 3; }
};

}  // namespace

#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: DeepEmbed, 1x and 4x") {
    check(compose<tiffin::deep_embed_1x>("deep_embed_1x"));
    check(compose<tiffin::deep_embed_4x>("deep_embed_4x"));
}
#endif
TEST_CASE("conformance: DeepEmbed with a matrix per token") {
    check(compose_with_reference<tiffin::deep_embed_v7a>("deep_embed_v7a"));
}
TEST_CASE("conformance: MoRT with mixed rows that are given") {
    check(compose<tiffin::modulated<tiffin::mlp, given_of_three, tiffin::add>>("mort_given"));
}
TEST_CASE("conformance: MoLE, folded") {
    check(compose_with_reference<tiffin::mole>("mole"));
}
TEST_CASE("conformance: MoLE as it is trained") {
    check(compose<tiffin::mole_training>("mole_training"));
}
