// What layer files mean as texts: each kind with its options and its forms; blocks inside blocks; what is refused.
#include <tiffin/io/layer_text.hpp>

#include <tiffin/all_policies.hpp>
#include <tiffin/io/described_layer.hpp>

#include "support/doctest.hpp"

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

namespace io_layer_text_test {
using namespace tiffin;

namespace {

using options = std::map<std::string, std::string>;

// The text of a block, or why it has none; the tensors are named and no more.
std::string text(const options& metadata, std::initializer_list<const char*> tensors = {}) {
    static constexpr float number = 0;
    io::described_layer layer{metadata, {}, {}};
    for (const char* const name : tensors) layer.tensors.add(name, {&number, dtype::f32, {1, 1}});
    const auto made = io::composition_of(layer);
    if (!made) return made.failure().message();
    if (!metadata.contains("composition")) {
        const auto composed = compose(*made, all_policies);
        CHECK_MESSAGE(composed.ok(), *made << ": " << (composed ? "" : composed.failure().message()));
    }
    return *made;
}

}  // namespace

TEST_CASE("layer texts: blocks of one activation") {
    CHECK(text({{"block", "mlp"}}) == "ffn(gate(gelu))");
    CHECK(text({{"block", "glu"}, {"activation", "relu"}}) == "ffn(gate(relu), dense)");
    CHECK(text({{"block", "stem"}, {"format", "pt"}}) == "ffn(gate(silu), token_embedding)");
    CHECK(text({{"block", "stem_gate"}}) == "ffn(gate(silu, token_embedding), dense)");
    CHECK(text({{"block", "stem_hybrid"}}) == "ffn(gate(silu), sum(dense, token_embedding))");
}

TEST_CASE("layer texts: forms that follow from options and tensors") {
    const std::string out = ", memory_output(eps=1e-06))";
    CHECK(text({{"block", "meki"}, {"folded", "true"}}) == "ffn(gate(sigmoid), memory_injection, add" + out);
    CHECK(text({{"block", "meki"}, {"fusion", "mul_silu"}, {"gate_input", "residual"}}) ==
          "on_residual(ffn(gate(silu), static_memory(eps=1e-06), multiply" + out + ")");
    CHECK(text({{"block", "meki"}}, {"word_embed.weight", "memory.weight"}) ==
          "ffn(gate(sigmoid), trained_memory(word_memory, eps=1e-06), add" + out);
    CHECK(text({{"block", "meki"}, {"eps", "0.25"}},
               {"word_embed.weight", "word_norm.weight", "word_proj.weight"}) ==
          "ffn(gate(sigmoid), dynamic_memory(linear_word_memory(normed_word(eps=0.25)), eps=0.25), add, "
          "memory_output(eps=0.25))");
    CHECK(text({{"block", "ple"}}) == "ffn(gate(gelu_tanh), per_layer_input, multiply" + out);
    CHECK(text({{"block", "ple"}}, {"memory.weight"}) ==
          "ffn(gate(gelu_tanh), memory_injection, multiply" + out);
    CHECK(text({{"block", "ple"}}, {"memory.weight", "word_embed.weight"}) ==
          "ffn(gate(gelu_tanh), ple_memory(eps=1e-06), multiply" + out);
    CHECK(text({{"block", "structmoe"}, {"top_k", "3"}}) ==
          "ffn(gate(gelu, sum(dense, routed_low_rank(softmax_topk(top_k=3)))))");
    CHECK(text({{"block", "structmoe"}, {"placement", "down"}}) ==
          "ffn(gate(gelu), none, multiply, project(no_norm, sum(dense, "
          "routed_low_rank(softmax_topk(top_k=1)))))");
    CHECK(text({{"block", "structmoe"}, {"fusion", "post_activation"}}) ==
          "ffn(gate(gelu, named(dense, 'up_proj')), routed_low_rank(softmax_topk(top_k=1)), add)");
    CHECK(text({{"block", "deep_embed"}}) == "fused(ffn(gate(relu_squared)), deep_embed, multiply)");
    CHECK(text({{"block", "deep_embed"}}, {"gate_proj.weight"}) == "ffn(gate(relu_squared), deep_embed)");
    CHECK(text({{"block", "deep_embed"}}, {"gate_proj.weight", "in_proj.weight"}) ==
          "ffn(gate(relu_squared), on_residual(deep_embed_matrix))");
    CHECK(text({{"block", "mole"}}, {"lookup.weight"}) == "sum(ffn(gate(gelu)), lookup_experts)");
    CHECK(text({{"block", "mole"}, {"activation", "silu"}}) ==
          "sum(ffn(gate(silu)), mixture(softmax_all, through('', per_layer_input, ffn(gate(silu)))))");
    CHECK(text({{"block", "product_keys"}, {"top_k", "4"}}) == "product_key_memory(top_k=4)");
    CHECK(text({{"block", "product_keys"}, {"top_k", "4"}}, {"gate_proj.weight"}) ==
          "ffn(gate(silu), product_key_memory(top_k=4))");
    CHECK(text({{"block", "peer"}, {"top_k", "4"}}) ==
          "routed_embedding(gated_rows(product_keys(top_k=4), row_activation(gelu), 'down_embed.weight'), "
          "chosen_rows('up_embed.weight'))");
    CHECK(text({{"block", "l3"}}) == "l3(eps=1e-05)");
    CHECK(text({{"block", "engram"}, {"eps", "1e-6"}}) == "engram(eps=1e-06)");
    CHECK(text({{"block", "longcat_embedding"}, {"terms", "5"}}) == "longcat_embedding(terms=5)");
}

TEST_CASE("layer texts: blocks inside blocks") {
    CHECK(text({{"block", "retoken"}, {"base.block", "glu"}}) ==
          "modulated(ffn(gate(silu), dense), token_modulator(l2(eps=1e-06)))");
    CHECK(text({{"block", "retoken"}, {"base.block", "glu"}, {"norm", "rms"}, {"eps", "0.5"}}) ==
          "modulated(ffn(gate(silu), dense), token_modulator(unweighted(rms(eps=0.5))))");
    CHECK(text({{"block", "retoken"}, {"base.block", "glu"}, {"folded", "true"}}) ==
          "modulated(ffn(gate(silu), dense), folded_modulator)");
    CHECK(text({{"block", "mort"}, {"base.block", "mlp"}, {"num_layers", "28"}}, {"router.weight"}) ==
          "modulated(ffn(gate(gelu)), modulator_pool(l2(eps=1e-06), sigmoid_topk_renorm(top_k=2), "
          "num_layers=28), add)");
    CHECK(text({{"block", "mort"}, {"base.block", "mlp"}, {"num_layers", "28"}}) ==
          "modulated(ffn(gate(gelu)), given_modulator(l2(eps=1e-06), num_layers=28), add)");
    CHECK(text({{"block", "parallel"},
                {"branches", "2"},
                {"branch.0.block", "glu"},
                {"branch.1.block", "l3"}}) == "parallel(ffn(gate(silu), dense), l3(eps=1e-05))");
    const options experts{{"block", "moe"}, {"num_experts", "2"}, {"expert.block", "stem"}, {"top_k", "2"}};
    CHECK(text(experts, {"experts.0.a", "experts.1.a"}) ==
          "mixture(softmax_topk(top_k=2), ffn(gate(silu), token_embedding))");
    options shared = experts;
    shared.insert({{"shared.block", "mlp"}, {"router_order", "topk_softmax"}});
    CHECK(text(shared, {"experts.0.a", "experts.1.a"}) ==
          "mixture(topk_softmax(top_k=2), ffn(gate(silu), token_embedding), ffn(gate(gelu)))");
    options mapped{{"block", "hash_moe"}, {"num_experts", "2"}, {"expert.block", "mlp"}};
    CHECK(text(mapped, {"experts.0.a", "experts.1.a"}) == "mixture(hash, ffn(gate(gelu)))");
    // A block inside may be said as a composition too.
    mapped.erase("expert.block");
    mapped["expert.composition"] = "stem";
    CHECK(text(mapped, {"experts.0.a", "experts.1.a"}) == "mixture(hash, stem)");
}

TEST_CASE("layer texts: compositions, and what is refused") {
    CHECK(text({{"composition", "ffn(gate(silu), sum(dense, token_embedding))"}, {"format", "pt"}}) ==
          "ffn(gate(silu), sum(dense, token_embedding))");
    CHECK(text({{"composition", "stem"}, {"block", "glu"}}) ==
          "composition: given beside block 'glu'; one of the two says what the block is");
    CHECK(text({{"composition", "stem"}, {"activation", "relu"}}) ==
          "activation: is not an option of block 'composition' (its value is 'relu')");
    CHECK(text({}) == "block: missing from __metadata__");
    CHECK(text({{"block", "swiglu"}}).find("block: is 'swiglu'; known are mlp, glu, ") == 0);
    CHECK(text({{"block", "glu"}, {"activation", "tanh"}}).find("activation: is 'tanh'; known are silu, ") ==
          0);
    CHECK(text({{"block", "mort"}, {"base.block", "mlp"}})
              .find("num_layers: missing from __metadata__; it counts") == 0);
    options nested{{"block", "retoken"}};
    std::string keys;
    for (int i = 0; i < 40; ++i) nested[(keys += "base.") + "block"] = "retoken";
    CHECK(text(nested).find("block: lies deeper than 32 blocks inside one another") != std::string::npos);
}

}  // namespace io_layer_text_test
