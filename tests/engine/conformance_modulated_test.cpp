// Memories, modulators and the blocks made of blocks.
#include <tiffin/layers.hpp>
#include <tiffin/norm/unweighted.hpp>
#include <tiffin/router/hash.hpp>
#include <tiffin/source/ple_memory.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"
#include "support/policies.hpp"

using namespace tiffin;
using tiffin_test::check;
using tiffin_test::compose;
using tiffin_test::compose_with_reference;

TEST_CASE("conformance: meki as trained") {
    meki_training block;
    block.output.norm.eps = 0.25f;
    block.hidden.up.input.norm.eps = 0.125f;
    check(compose_with_reference("meki_training", block));
}
TEST_CASE("conformance: meki, dynamic alone, its words normed, mul_silu, on the residual") {
    using memory = ffn<gate<silu>, dynamic_memory<word_memory<normed_word>>, multiply, memory_output>;
    check(compose_with_reference<on_residual<memory>>("meki dynamic"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: meki, static alone, beside an ffn") {
    using memory = ffn<gate<sigmoid>, static_memory, multiply, memory_output>;
    check(compose_with_reference<parallel<swiglu, memory, mlp>>("meki static"));
}
#endif
TEST_CASE("conformance: ple with the caller's input") {
    check(compose_with_reference<ple_given>("ple_given"));
}

#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: ple with its context term") {
    check(compose<ple_full>("ple with context"));
}

TEST_CASE("conformance: ple with the caller's input inside a chain, of the chain's width") {
    using memory = through<"chain", per_layer_input, named<dense, "inner">>;
    check(compose<ffn<gate<gelu_tanh>, memory, multiply, memory_output>>("given in a chain"));
}
#endif

TEST_CASE("conformance: retoken") {
    retoken<swiglu> block;
    block.modulator.row.norm.eps = 0.5f;
    check(compose_with_reference("retoken", block));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: retoken with rms, over a mixture") {
    using modulator = token_modulator<unweighted<rms>>;
    check(compose<modulated<moe<mlp>, modulator>>("retoken over moe"));
}
#endif
TEST_CASE("conformance: retoken folded, over a block with a norm") {
    check(compose<retoken_folded<ffn<gate<silu>, token_embedding, multiply, project<rms>>>>("folded"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: mort") {
    mort<stem> block;
    block.modulator.num_layers = 7;
    block.modulator.mixed.norm.eps = 0.5f;
    check(compose_with_reference("mort", block));
}
#endif
TEST_CASE("conformance: a pool whose experts come from a map") {
    check(compose<modulated<mlp, tiffin_test::pool_of_three<l2, hash>, add>>("mort by a map"));
}
TEST_CASE("conformance: mort over branches, in a branch") {
    using inner = parallel<mlp, swiglu>;
    check(compose<parallel<tiffin_test::mort_of_three<inner>, mlp>>("mort over parallel"));
}
