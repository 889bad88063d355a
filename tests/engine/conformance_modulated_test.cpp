// Memories, modulators and the blocks made of blocks.
#include <tiffin/layers.hpp>
#include <tiffin/norm/unweighted.hpp>
#include <tiffin/router/hash.hpp>
#include <tiffin/source/ple_memory.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"
#include "support/policies.hpp"

namespace engine_conformance_modulated_test {
using namespace tiffin;
using tiffin_test::check;
using tiffin_test::compose;
using tiffin_test::compose_with_reference;

TEST_CASE("conformance: meki as trained") {
    meki_training block;
    block.output.norm.eps = 0.25f;
    block.hidden.up.input.norm.eps = 0.125f;
    check(compose_with_reference(
        "ffn(gate(sigmoid), trained_memory(eps=0.125), add, memory_output(eps=0.25))", block));
}
TEST_CASE("conformance: meki, dynamic alone, its words normed, mul_silu, on the residual") {
    using memory = ffn<gate<silu>, dynamic_memory<word_memory<normed_word>>, multiply, memory_output>;
    check(compose_with_reference<on_residual<memory>>(
        "on_residual(ffn(gate(silu), dynamic_memory(word_memory(normed_word)), multiply, memory_output))"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: meki, static alone, beside an ffn") {
    using memory = ffn<gate<sigmoid>, static_memory, multiply, memory_output>;
    check(compose_with_reference<parallel<swiglu, memory, mlp>>(
        "parallel(swiglu, ffn(gate(sigmoid), static_memory, multiply, memory_output), mlp)"));
}
#endif
TEST_CASE("conformance: ple with the caller's input") {
    check(compose_with_reference<ple_given>("ple_given"));
}

#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: ple with its context term") {
    check(compose<ple_full>("ple_full"));
}

TEST_CASE("conformance: ple with the caller's input inside a chain, of the chain's width") {
    using memory = through<"chain", per_layer_input, named<dense, "inner">>;
    check(compose<ffn<gate<gelu_tanh>, memory, multiply, memory_output>>(
        "ffn(gate(gelu_tanh), through('chain', per_layer_input, named(dense, 'inner')), multiply, "
        "memory_output)"));
}
#endif

TEST_CASE("conformance: retoken") {
    retoken<swiglu> block;
    block.modulator.row.norm.eps = 0.5f;
    check(compose_with_reference("modulated(swiglu, token_modulator(l2(eps=0.5)))", block));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: retoken with rms, over a mixture") {
    using modulator = token_modulator<unweighted<rms>>;
    check(compose<modulated<moe<mlp>, modulator>>("modulated(moe(mlp), token_modulator(unweighted(rms)))"));
}
#endif
TEST_CASE("conformance: retoken folded, over a block with a norm") {
    check(compose<retoken_folded<ffn<gate<silu>, token_embedding, multiply, project<rms>>>>(
        "retoken_folded(ffn(gate(silu), token_embedding, multiply, project(rms)))"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: mort") {
    mort<stem> block;
    block.modulator.num_layers = 7;
    block.modulator.mixed.norm.eps = 0.5f;
    check(compose_with_reference("modulated(stem, modulator_pool(l2(eps=0.5), num_layers=7), add)", block));
}
#endif
TEST_CASE("conformance: a pool whose experts come from a map") {
    check(compose<modulated<mlp, tiffin_test::pool_of_three<l2, hash>, add>>(
        "modulated(mlp, modulator_pool(l2, hash, num_layers=3), add)"));
}
TEST_CASE("conformance: mort over branches, in a branch") {
    using inner = parallel<mlp, swiglu>;
    check(compose<parallel<tiffin_test::mort_of_three<inner>, mlp>>(
        "parallel(mort(parallel(mlp, swiglu), num_layers=3), mlp)"));
}

}  // namespace engine_conformance_modulated_test
