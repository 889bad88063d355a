// Layers of other papers that the grammar says too: docs/layers.md, "Relatives".
#include <tiffin/activation/gelu_tanh.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/gaussian_top_k.hpp>
#include <tiffin/source/bias.hpp>
#include <tiffin/source/centred.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"

#include <tuple>

namespace engine_conformance_relatives_test {
using tiffin_test::check;
using tiffin_test::compose;
using tiffin_test::compose_with_reference;

namespace {

template <class Layer>
Layer two_per_head() {
    Layer made;
    made.router.top_k = 2;
    return made;
}

// Of a block whose inner rows are all d_ff wide.
template <class Block>
auto tensors_of_one_width(const tiffin_test::sizes& s) {
    tiffin::block_shape shape = s.shape();
    shape.inner = {shape.d_ff};
    return tiffin::tensors_needed(Block{}, shape);
}

struct mean_of_five : tiffin::longcat_embedding {
    constexpr mean_of_five() { terms = 5; }
};

// Engram as DeepSeek gates it.
using deepseek_engram = tiffin::dot_gated<tiffin::copysign_root_gate, tiffin::engram_key,
                                          tiffin::engram_query, tiffin::engram_value>;
// PEER whose experts do not compete.
using relu_peer = tiffin::routed_embedding<
    tiffin::gated_rows<tiffin::product_keys_relu, tiffin::row_activation<tiffin::gelu>, "down_embed.weight">,
    tiffin::chosen_rows<"up_embed.weight">>;

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
    check(compose<tiffin::modulated<tiffin::mlp, given_of_three, tiffin::add>>(
        "mort_given(mlp, num_layers=3)"));
}
TEST_CASE("conformance: MoLE, folded") {
    check(compose_with_reference<tiffin::mole>("mole"));
}
TEST_CASE("conformance: MoLE as it is trained") {
    check(compose<tiffin::mole_training>("mole_training"));
}
TEST_CASE("conformance: product keys") {
    check(compose_with_reference("product_key_memory(top_k=2)", two_per_head<tiffin::product_key_memory>()));
}
TEST_CASE("conformance: memory layers, the rows gated") {
    tiffin::memory_plus block;
    block.hidden.up = two_per_head<tiffin::product_key_memory>();
    check(compose("memory_plus(top_k=2)", block));
}
TEST_CASE("conformance: experts of one neuron") {
    check(compose("peer(top_k=2)", two_per_head<tiffin::peer>()));
    check(compose(
        "routed_embedding(gated_rows(product_keys_relu(top_k=2), row_activation, 'down_embed.weight'), "
        "chosen_rows('up_embed.weight'))",
        two_per_head<relu_peer>()));
}
TEST_CASE("conformance: rows of a range") {
    check(compose_with_reference<tiffin::l3>("l3"));
}
// Its two projections read one row.
TEST_CASE("conformance: Engram's gate") {
    tiffin_test::composition what = compose_with_reference<tiffin::engram>("engram");
    what.tensors = [](const tiffin_test::sizes& s) {
        tiffin::block_shape shape = s.shape();
        shape.inner = {7, 7};
        return tiffin::tensors_needed(tiffin::engram{}, shape);
    };
    check(what);
    tiffin_test::composition copied = compose<deepseek_engram>(
        "dot_gated(copysign_root_gate, normed(rms, through('', per_layer_input, named(dense, 'key_proj')), "
        "'key_norm'), "
        "normed(rms, source_input, 'query_norm'), through('', per_layer_input, named(dense, 'value_proj')))");
    copied.tensors = what.tensors;
    check(copied);
    // Of several branches, whose value is the residual of the call.
    tiffin_test::composition branch = compose_with_reference<tiffin::engram_branch>("engram_branch");
    branch.tensors = [](const tiffin_test::sizes& s) {
        tiffin::block_shape shape = s.shape();
        shape.inner = {7};
        return tiffin::tensors_needed(tiffin::engram_branch{}, shape);
    };
    check(branch);
}
// LayerNorm: of the input, with and without an offset; of rows that are looked up.
TEST_CASE("conformance: a row less its mean") {
    using tiffin::centred, tiffin::normed, tiffin::rms, tiffin::sum, tiffin::through, tiffin::bias;
    using offset = bias<"norm.bias">;
    check(compose<normed<rms, centred>>("normed(rms, centred)"));
    check(compose_with_reference<sum<normed<rms, centred>, offset>>(
        "sum(normed(rms, centred), bias('norm.bias'))"));
    using rows = sum<tiffin::token_embedding, tiffin::per_layer_input>;
    using block = tiffin::ffn<tiffin::gate<tiffin::silu>, through<"", rows, normed<tiffin::l2, centred>>>;
    tiffin_test::composition of_rows = compose<block>(
        "ffn(gate(silu), through('', sum(token_embedding, per_layer_input), normed(l2, centred)))");
    of_rows.tensors = tensors_of_one_width<block>;
    check(of_rows);
}
// The gate of Gemma 3n's first layers: of the gate's row, what is above a threshold.
TEST_CASE("conformance: a gate that keeps its largest values") {
    using tiffin::centred, tiffin::dense, tiffin::ffn, tiffin::gate, tiffin::gaussian_top_k, tiffin::named,
        tiffin::normed, tiffin::through;
    using sparse = through<"", named<dense, "gate_proj">, normed<gaussian_top_k, centred>>;
    using layer = ffn<gate<tiffin::gelu_tanh, sparse>, dense>;
    layer block;
    std::get<1>(block.hidden.gate.input.steps).norm.deviations = 0.5f;
    tiffin_test::composition made = compose(
        "ffn(gate(gelu_tanh, through('', named(dense, 'gate_proj'), "
        "normed(gaussian_top_k(deviations=0.5), centred))), dense)",
        block);
    made.tensors = tensors_of_one_width<layer>;
    check(made);
}
TEST_CASE("conformance: LongCat's embedding") {
    check(compose<mean_of_five>("longcat_embedding(terms=5)"));
    tiffin::longcat_sparse_embedding sparse;
    std::get<1>(sparse.terms).terms = 5;
    check(compose("longcat_sparse_embedding(terms=5)", sparse));
}

}  // namespace engine_conformance_relatives_test
