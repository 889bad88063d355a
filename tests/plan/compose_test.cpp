// Texts beside types: the same plan, the same bits; what a text may leave out; what is refused, and where.
#include <tiffin/all_policies.hpp>
#include <tiffin/plan/compose.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/runtime/any_layer.hpp>
#include <tiffin/source/routes_of.hpp>

#include "support/combinators.hpp"
#include "support/doctest.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/same_plan.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plan_compose_test {
using namespace tiffin;
using namespace tiffin_test;

namespace {

struct cube {
    template <class S>
    TIFFIN_HD S operator()(const S& z) const {
        return z * z * z;
    }
    static constexpr double flops() noexcept { return 2; }
};

// y_j = a_j (W x)_j + U[t]_j.
struct scaled_product {
    using weight = projection<"weight">;
    using scale = tiffin::vector<"scale">;
    using rows = table<"rows">;
    using tensors = tensor_list<weight, scale, rows>;
    static constexpr std::string_view name = "scaled_product";

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[scale{}] * at[weight{}] + at[rows{}];
    }
};

// A policy of the tests' own of each kind: one line each.
constexpr policies known{policy<cube>("cube"),
                         policy<scaled_product>("scaled_product"),
                         policy<gated_sum>("gated_sum"),
                         policy<damped>("damped"),
                         policy<tempered_top_2>("tempered_top_2"),
                         policy<blend<argument<0>, argument<1>>>("blend"),
                         policy<times_bank<argument<0>, router_argument<1>>>("times_bank"),
                         policy_alias("endless", "sum(endless, endless)"),
                         policy_alias("itself", "itself"),
                         policy_alias("doubled", "sum(_0, _0)"),
                         all_policies};

std::string composed(std::string_view text) {
    const auto made = compose(text, known);
    return made ? made->text() : "refused: " + made.failure().what;
}

template <class Block>
void check_plan(std::string_view text, const Block& block = {}) {
    CAPTURE(text);
    const auto made = compose(text, known);
    REQUIRE_MESSAGE(made.ok(), composed(text));
    CHECK(difference(made->plan(), lower(block)) == "");
    CHECK(composed(made->text()) == made->text());
}

// What a layer computes of x, to the bit.
std::vector<float> outputs(const any_layer& layer, std::size_t tokens, std::size_t vocab) {
    const std::size_t d = layer.d_model(), given = layer.needs().given_width;
    const std::vector<float> x = random_rows(tokens, d, 3), residual = random_rows(tokens, d, 4),
                             beside = random_rows(tokens, given, 5);
    const std::vector<std::int32_t> ids = random_ids(tokens, vocab, 6);
    token_inputs inputs{.token_ids = ids};
    if (layer.needs().residual) inputs.residual = {residual.data(), tokens, d};
    if (given > 0) inputs.per_layer_input = {beside.data(), tokens, given};
    std::vector<float> y(tokens * layer.outputs());
    workspace memory = layer.make_workspace(tokens, 1);
    const status s = layer.try_call(x, inputs, y, memory);
    REQUIRE_MESSAGE(s.ok(), (s.ok() ? "" : s.failure().message()));
    return y;
}

template <class Backend, class Block>
void check_bits_on(const Backend& backend, std::string_view text, const Block& block) {
    CAPTURE(text);
    const sizes s{.d_model = 37, .d_ff = 29, .vocab = 11, .experts = 9};
    const auto wanted = [&](const sizes& of) {
        block_shape shape = of.shape();
        shape.inner = {5, 5};  // what a call gives has one width
        return tensors_needed(block, shape);
    };
    const tensor_set tensors(wanted, {.sizes = s, .dense = {}, .tables = {}});
    const auto made = compose<typename Backend::machine>(text, known);
    REQUIRE_MESSAGE(made.ok(), composed(text));
    const any_layer of_type(prepare(block, tensors.given(), backend));
    const any_layer of_text(prepare(*made, tensors.given(), backend));
    CHECK(of_text.needs().choices == of_type.needs().choices);
    for (const std::size_t tokens : {1u, 5u})
        CHECK((outputs(of_text, tokens, s.vocab) == outputs(of_type, tokens, s.vocab)));
}
template <class Block>
void check_bits(std::string_view text, const Block& block = {}) {
    check_bits_on(reference<>{}, text, block);
    check_bits_on(eigen{}, text, block);
    check_bits_on(simd<>{}, text, block);
}

}  // namespace

TEST_CASE("compose: the layers, each with the plan that its type has") {
    check_plan<mlp>("mlp");
    check_plan<swiglu>("swiglu");
    check_plan<geglu>("geglu");
    check_plan<reglu>("reglu");
    check_plan<stem>("stem");
    check_plan<stem_gate>("stem_gate");
    check_plan<stem_hybrid>("stem_hybrid");
    check_plan<structmoe>("structmoe");
    check_plan<structmoe_gated>("structmoe_gated");
    check_plan<structmoe_post>("structmoe_post");
    check_plan<structmoe_down>("structmoe_down");
    check_plan<meki>("meki");
    check_plan<meki_mul_sigmoid>("meki_mul_sigmoid");
    check_plan<meki_add_silu>("meki_add_silu");
    check_plan<meki_mul_silu>("meki_mul_silu");
    check_plan<meki_training>("meki_training");
    check_plan<meki_training_linear>("meki_training_linear");
    check_plan<ple>("ple");
    check_plan<ple_full>("ple_full");
    check_plan<ple_given>("ple_given");
    check_plan<retoken<swiglu>>("retoken(swiglu)");
    check_plan<retoken_folded<swiglu>>("retoken_folded(swiglu)");
    check_plan<mort<stem>>("mort(stem)");
    check_plan<mort_given<stem>>("mort_given(stem)");
    check_plan<moe<swiglu>>("moe(swiglu)");
    check_plan<hash_moe<stem>>("hash_moe(stem)");
    check_plan<deep_embed>("deep_embed");
    check_plan<deep_embed_1x>("deep_embed_1x");
    check_plan<deep_embed_4x>("deep_embed_4x");
    check_plan<deep_embed_v7a>("deep_embed_v7a");
    check_plan<mole>("mole");
    check_plan<mole_training>("mole_training");
    check_plan<product_key_memory>("product_key_memory");
    check_plan<memory_plus>("memory_plus");
    check_plan<peer>("peer");
    check_plan<l3>("l3");
    check_plan<engram>("engram");
    check_plan<longcat_embedding>("longcat_embedding");
    check_plan<longcat_sparse_embedding>("longcat_sparse_embedding");
}

TEST_CASE("compose: other policies and combinators") {
    check_plan<linear<"proj">>("linear");
    check_plan<linear<"head">>("linear('head')");
    check_plan<branch<rms, swiglu>>("branch(rms, swiglu)");
    check_plan<pre_normed<rms_cast_first, stem>>("pre_normed(rms_cast_first, stem)");
    check_plan<parallel<swiglu, delayed<mort<stem>, 2>>>("parallel(swiglu, delayed(mort(stem), layers=2))");
    check_plan<parallel<stem>>("parallel(stem)");
    check_plan<on_residual<stem>>("on_residual(stem)");
    check_plan<sum<dense, named<dense, "a">, named<dense, "b">, token_embedding>>(
        "sum(dense, named(dense, 'a'), named(dense, 'b'), token_embedding)");
    check_plan<through<"steps", token_embedding, named<dense, "a">, gate<relu>, named<dense, "b">>>(
        "through('steps', token_embedding, named(dense, 'a'), gate(relu), named(dense, 'b'))");
    check_plan<ffn<gate<silu>, dense, add, project<rms_one_plus>>>(
        "ffn(gate(silu), dense, add, project(rms_one_plus))");
    check_plan<ffn<gate<silu>, normed<unweighted<rms>, dense, "up_norm">>>(
        "ffn(gate(silu), normed(unweighted(rms), dense, 'up_norm'))");
    check_plan<modulated<mlp, token_modulator<rms>>>("modulated(mlp, token_modulator(rms))");
    check_plan<modulated<mlp, token_modulator<unweighted<rms>>>>(
        "modulated(mlp, token_modulator(unweighted(rms)))");
    check_plan<modulated<mlp, modulator_pool<rms, softmax_topk>, add>>(
        "modulated(mlp, modulator_pool(rms, softmax_topk), add)");
    check_plan<mixture<sigmoid_topk_renorm, stem, swiglu>>("mixture(sigmoid_topk_renorm, stem, swiglu)");
    check_plan<mixture<topk_softmax, mixture<softmax_topk_renorm, mlp>>>(
        "mixture(topk_softmax, mixture(softmax_topk_renorm, mlp))");
    check_plan<routes_of<softmax_all>>("routes_of(softmax_all)");
    check_plan<structmoe_gated>("ffn(gate(gelu, named(dense, 'up_proj')), routed_low_rank)");
    const routed_embedding<gated_rows<row_range, row_activation<silu>, "k">, chosen_rows<"v">> rows{};
    check_plan("routed_embedding(gated_rows(row_range, row_activation(silu), 'k'), chosen_rows('v'))", rows);
}

TEST_CASE("compose: options, and their defaults where a parent has others") {
    const auto eps = [](std::string_view norm) {
        return composed("modulated(mlp, token_modulator(" + std::string(norm) + "))");
    };
    CHECK(eps("rms").find("rms(eps=1e-06)") != std::string::npos);
    CHECK(eps("rms(eps=1e-5)").find("rms(eps=1e-05)") != std::string::npos);
    CHECK(eps("unweighted(rms)").find("unweighted(rms(eps=1e-06))") != std::string::npos);
    CHECK(eps("unweighted(rms(eps=0.5))").find("unweighted(rms(eps=0.5))") != std::string::npos);
    CHECK(composed("normed(rms, dense)") == "normed(rms(eps=1e-05), dense, \"norm\")");
    CHECK(composed("normed(rms(eps=0), dense)") == "normed(rms(eps=0.0), dense, \"norm\")");
    CHECK(composed("mixture(softmax_topk(top_k=all), dense)") ==
          "mixture(softmax_topk(top_k=all), dense, none)");
    CHECK(composed("modulator_pool(num_layers=28)") ==
          "mixed_modulator(l2(eps=1e-06), routed_embedding(sigmoid_topk_renorm(top_k=2), "
          "pool(\"modulators.weight\")), num_layers=28)");
    CHECK(composed("modulator_pool(l2, sigmoid_topk_renorm(top_k=3))").find("top_k=3") != std::string::npos);
    CHECK(composed("doubled(dense)") == "sum(dense, dense)");
    CHECK(composed("source_block(dense)") == "dense");

    moe<stem> three{};
    three.router.top_k = 3;
    check_plan("moe(stem, top_k=3)", three);
    mort<swiglu> deep{};
    deep.modulator.num_layers = 28;
    const auto made = compose("mort(swiglu, num_layers=28)", known);
    REQUIRE(made.ok());
    const tensor_set tensors =
        tensor_set::of(deep, {.sizes = {.d_model = 6, .d_ff = 5, .vocab = 4}, .dense = {}, .tables = {}});
    CHECK(bind_weights(*made, tensors.given()).ok());
    CHECK_FALSE(bind_weights(*compose("mort(swiglu)", known), tensors.given()).ok());  // it has no default
}

TEST_CASE("compose: the bits that types have") {
    check_bits<stem_hybrid>("stem_hybrid");
    check_bits<structmoe>("structmoe");
    check_bits_on(simd<>{}, "meki_training", meki_training{});
    check_bits_on(simd<>{}, "ple_full", ple_full{});
    check_bits_on(simd<>{}, "deep_embed_v7a", deep_embed_v7a{});
    check_bits_on(eigen{}, "engram", engram{});
    check_bits_on(simd<>{}, "l3", l3{});
    check_bits_on(eigen{}, "mole_training", mole_training{});
    mort_of_three<stem> pooled{};
    check_bits_on(simd<>{}, "mort(stem, num_layers=3)", pooled);
    memory_plus memory{};
    memory.hidden.up.router.top_k = 2;
    check_bits_on(reference<>{}, "memory_plus(top_k=2)", memory);
    peer rows{};
    rows.router.top_k = 2;
    check_bits("peer(top_k=2)", rows);
    moe<stem> experts{};
    experts.router.top_k = 2;
    check_bits("moe(stem, top_k=2)", experts);
}

TEST_CASE("compose: policies of one's own, in a mixture and under a modulator") {
    using up = blend<scaled_product, named<dense, "plain">>;
    using hidden = ffn<gate<cube>, up, gated_sum, project<damped>>;
    constexpr std::string_view text =
        "ffn(gate(cube), blend(scaled_product, named(dense, 'plain')), gated_sum, project(damped))";
    check_plan<hidden>(text);
    check_bits<hidden>(text);
    const std::string inner(text);
    check_bits<mixture<tempered_top_2, hidden>>("mixture(tempered_top_2, " + inner + ")");
    check_bits<retoken<hidden>>("retoken(" + inner + ")");
    check_bits<modulated<hidden, token_modulator<damped>, gated_sum>>(
        "modulated(" + inner + ", token_modulator(damped), gated_sum)");
    check_plan<times_bank<mlp, tempered_top_2>>("times_bank(mlp, tempered_top_2)");
    check_bits<times_bank<hidden, tempered_top_2>>("times_bank(" + inner + ", tempered_top_2)");
}

TEST_CASE("compose: what is wrong, and where") {
    const auto refused = [](std::string_view text, std::string_view why) {
        CAPTURE(text);
        CHECK(composed(text).find("refused: " + std::string(why)) == 0);
    };
    refused("ffn(gate(sillu), dense)", "'sillu' at byte 9 is not known; known are cube, ");
    refused("ffn(gate(silu), relu)", "'relu' at byte 16 is an activation; argument 2 of 'ffn' is a source");
    refused("ffn(gate(silu), none, add)",
            "'add' at byte 22 is argument 3 of 'ffn', which those before it leave no place for");
    refused("ffn(dense)", "'dense' at byte 4 is a source; argument 1 of 'ffn' is a gate");
    refused("silu", "'silu' at byte 0 is an activation; a block is a source");
    refused("none", "'none' at byte 0 is none; a block is a source");
    refused("gate(silu, dense, dense)", "'gate' at byte 0 has 3 arguments; it takes 2");
    refused("gate", "'gate' at byte 0 has 0 arguments; it takes 1 or more");
    refused("sum(dense)", "'sum' at byte 0 has 1 arguments; it takes 2 or more");
    refused("sum(dense, gelu)", "'gelu' at byte 11 is an activation; argument 2 of 'sum' is a source");
    refused("through(dense, stem, stem)",
            "'dense' at byte 8 is a source; argument 1 of 'through' is a string");
    refused("ffn('name')", "'name' at byte 4 is a string; argument 1 of 'ffn' is a gate");
    refused("sum('a', dense)", "'a' at byte 4 is a string; argument 1 of 'sum' is a source");
    // Strings in the place of arguments, in five forms, of every word.
    const std::string words = composed("?");
    for (std::size_t at = words.find("known are ") + 10, end = at; end < words.size(); at = end + 2) {
        end = std::min(words.find(", ", at), words.size());
        const std::string word = words.substr(at, end - at);
        for (const char* const given :
             {"('a')", "('a', 'b')", "(dense, 'b')", "(gate(silu), 'b', 'c', 'd')", "(silu, 'b')"}) {
            const std::string found = composed(word + given);
            CHECK((found.find("refused: ") == 0 || composed(found) == found));
        }
    }
    refused("stem(dense)", "'stem' at byte 0 has 1 arguments; it takes at most 0");
    refused("moe(stem, topk=2)", "'moe' at byte 0 has no option 'topk'; write it out: mixture(");
    refused("sum(dense, normed(rms(esp=1), dense))", "'rms' at byte 18 has no option 'esp'; it has eps");
    refused("gate(silu(eps=1))", "'silu' at byte 5 has no option 'eps'; it has none");
    refused("normed(rms(eps=1e60), dense)", "'rms' at byte 7 has eps=1e+60, which this option cannot be");
    refused("normed(rms(eps=all), dense)", "'rms' at byte 7 has eps=all, which this option cannot be");
    refused("moe(stem, top_k=-1)", "'softmax_topk' at byte 0 has top_k=-1, which this option cannot be");
    refused("moe(stem, top_k=1.5)", "'softmax_topk' at byte 0 has top_k=1.5, which this option cannot be");
    refused("normed(rms(eps=1, eps=2), dense)", "'rms' at byte 7 has option 'eps' twice");
    refused("moe(stem, top_k=1, top_k=1)", "'moe' at byte 0 has option 'top_k' twice");
    refused("normed(unweighted(rms(eps=1), eps=2), dense)", "'unweighted' at byte 7 has option 'eps' twice");
    refused("gate(3)", "has a number for an argument at byte 5");
    refused("mixture(product_keys, stem)", "'mixture' at byte 0 has a router that chooses rows");
    refused("routed_low_rank(row_range)", "'routed_low_rank' at byte 0 has a router that chooses rows");
    refused("routed_embedding(gated_rows(softmax_topk, row_softmax), chosen_rows('v'))",
            "'gated_rows' at byte 17 gates the rows that a router of rows chooses");
    refused("routed_embedding(gated_rows(hash, row_softmax), chosen_rows('v'))",
            "'gated_rows' at byte 17 gates the rows that a router of rows chooses");
    refused("routed_embedding(hash, dense)",
            "'dense' at byte 23 is a source; argument 2 of 'routed_embedding' is a tensor");
    refused("named(stem, 'x')", "'named' at byte 0 names a source that has parts");
    refused("dot_gated(signed_root_gate, dense, source_input, dense)", "'dot_gated' at byte 0 has a product");
    CHECK(composed("endless").find("is one policy too many") != std::string::npos);
    CHECK(composed("itself").find("is one policy too many") != std::string::npos);
    std::string wide = "dense";
    for (int i = 0; i < 20; ++i) wide = "doubled(" + wide + ")";
    CHECK(composed(wide).find("one policy too many") != std::string::npos);
    std::string held = "dense";  // each holds its own tensor and the first part until the second is there
    for (int i = 0; i < 17; ++i) held = "blend(token_embedding, " + held + ")";
    refused(held, "'blend' at byte ");
    CHECK(composed(held).find("holds more than 32 values at a time") != std::string::npos);
}

}  // namespace plan_compose_test
