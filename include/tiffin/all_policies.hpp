// The library's policies by name, for compose(); layers.hpp has them as types.
#pragma once

#include <tiffin/activation/identity.hpp>
#include <tiffin/block/branch.hpp>
#include <tiffin/block/delayed.hpp>
#include <tiffin/block/linear.hpp>
#include <tiffin/block/parallel.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/gaussian_top_k.hpp>
#include <tiffin/norm/rms_cast_first.hpp>
#include <tiffin/norm/rms_one_plus.hpp>
#include <tiffin/norm/unweighted.hpp>
#include <tiffin/plan/compose.hpp>
#include <tiffin/source/bias.hpp>
#include <tiffin/source/centred.hpp>
#include <tiffin/source/residual_input.hpp>

#include <vector>

TIFFIN_BEGIN

// clang-format off
namespace policy_lists {

inline constexpr policies activations_fusions_norms{
    policy<silu>("silu"), policy<gelu>("gelu"), policy<gelu_tanh>("gelu_tanh"), policy<relu>("relu"),
    policy<sigmoid>("sigmoid"), policy<identity>("identity"), policy<relu_squared>("relu_squared"),
    policy<multiply>("multiply"), policy<add>("add"),
    policy<l2>("l2"), policy<rms>("rms"), policy<rms_cast_first>("rms_cast_first"), policy<rms_one_plus>("rms_one_plus"),
    policy<memory_norm>("memory_norm"), policy<no_norm>("no_norm"), policy<gaussian_top_k>("gaussian_top_k"),
    policy<unweighted<rms>>("unweighted(rms)"), policy<unweighted<rms_cast_first>>("unweighted(rms_cast_first)")};

inline constexpr policies routers{
    policy<softmax_topk>("softmax_topk"), policy<softmax_topk_renorm>("softmax_topk_renorm"),
    policy<topk_softmax>("topk_softmax"), policy<softmax_all>("softmax_all"),
    policy<sigmoid_topk_renorm>("sigmoid_topk_renorm"), policy<linear_all<"$0">>("linear_all", {"'router.weight'"}),
    policy<hash>("hash"), policy<product_keys>("product_keys"),
    policy<product_keys_relu>("product_keys_relu"), policy<row_range>("row_range"),
    policy<gated_rows<row_router_argument<0>, row_gate_argument<1>, "$2">>("gated_rows", {"'row_keys.weight'"}),
    policy<row_activation<activation_argument<0>>>("row_activation", {"gelu"}), policy<row_softmax>("row_softmax")};

inline constexpr policies sources{
    policy<none>("none"), policy<dense>("dense"), policy<token_embedding>("token_embedding"),
    policy<per_layer_input>("per_layer_input"), policy<source_input>("source_input"),
    policy<residual_input>("residual_input"),
    policy<pool<"$0">>("pool"), policy<chosen_rows<"$0">>("chosen_rows"), policy<input_row>("input_row"),
    policy<named<argument<0>, "$1">>("named"),
    policy<scaled<"$0", argument<1>>>("scaled"),
    policy<gate<activation_argument<0>, argument<1>>>("gate", {"dense"}),
    policy<fused<argument<0>, argument<1>, fusion_argument<2>>>("fused"),
    policy<sum<argument<0>, arguments<1>>>("sum"),
    policy<through<"$0", argument<1>, arguments<2>>>("through"),
    policy<normed<norm_argument<0, true>, argument<1>, "$2">,
           normed<norm_argument<0, false>, argument<1>, "$2">>("normed", {"'norm'"}),
    policy<signed_root_gate>("signed_root_gate"), policy<copysign_root_gate>("copysign_root_gate"),
    policy<dot_gated<dot_gate_argument<0>, argument<1>, argument<2>, argument<3>>>("dot_gated"),
    policy<mean_of_terms<argument<0>>>("mean_of_terms"),
    policy<centred>("centred"), policy<bias<"$0">>("bias", {"'bias'"}),
    policy<times_roots<argument<0>>>("times_roots"),
    policy<routed_low_rank<router_argument<0>>>("routed_low_rank", {"softmax_topk"}),
    policy<routed_embedding<router_argument<0>, tensor_argument<1>>>(
        "routed_embedding", {"sigmoid_topk_renorm", "pool('modulators.weight')"}),
    policy<token_modulator<norm_argument<0, true>>, token_modulator<norm_argument<0, false>>>(
        "token_modulator", {"l2"}, {"rms(eps=1e-6)", "unweighted(rms(eps=1e-6))"}),
    policy<mixed_modulator<norm_argument<0, true>, argument<1>>,
           mixed_modulator<norm_argument<0, false>, argument<1>>>(
        "mixed_modulator", {},
        {"rms(eps=1e-6)", "unweighted(rms(eps=1e-6))", "routed_embedding(sigmoid_topk_renorm(top_k=2))"}),
    policy<undivided_modulator<norm_argument<0, true>, argument<1>>,
           undivided_modulator<norm_argument<0, false>, argument<1>>>(
        "undivided_modulator", {"l2", "routed_embedding(sigmoid_topk_renorm(top_k=2))"},
        {"rms(eps=1e-6)", "unweighted(rms(eps=1e-6))", "routed_embedding(sigmoid_topk_renorm(top_k=2))"}),
    policy_alias("routes_of", "routed_embedding(_0, input_row)"),
    policy_alias("modulator_pool", "mixed_modulator(_0, routed_embedding(_1), num_layers=_num_layers)",
                 {"l2", "sigmoid_topk_renorm"}),
    policy_alias("given_modulator", "mixed_modulator(_0, per_layer_input, num_layers=_num_layers)", {"l2"}),
    policy_alias("folded_modulator", "named(token_embedding, 'modulators')"),
    policy_alias("memory_injection", "named(token_embedding, 'memory')"),
    policy_alias("normed_word", "normed(memory_norm(eps=_eps), named(token_embedding, 'word_embed'), 'word_norm')"),
    policy_alias("word_memory", "through('word_proj', _0, fused(gate(silu), dense, multiply), named(dense, 'down_proj'))",
                 {"named(token_embedding, 'word_embed')"}),
    policy_alias("linear_word_memory", "through('', _0, named(dense, 'word_proj'))",
                 {"named(token_embedding, 'word_embed')"}),
    policy_alias("trained_memory",
                 "scaled('alpha', normed(memory_norm(eps=_eps), sum(memory_injection, scaled('beta', _0)), 'mix_norm'))",
                 {"word_memory"}),
    policy_alias("static_memory", "scaled('alpha', normed(memory_norm(eps=_eps), memory_injection, 'mix_norm'))"),
    policy_alias("dynamic_memory",
                 "scaled('alpha', normed(memory_norm(eps=_eps), scaled('beta', _0), 'mix_norm'))", {"word_memory"}),
    policy_alias("ple_memory",
                 "times_roots(sum(normed(memory_norm(eps=_eps), through('', times_roots(named(token_embedding, "
                 "'word_embed'), width=-1), named(dense, 'per_layer_model_projection')), 'per_layer_projection_norm'), "
                 "times_roots(memory_injection, width=1)), two=-1)")};

inline constexpr policies blocks{
    policy<ffn<gate_argument<0>, argument<1>, fusion_argument<2>, argument<3>>,
           ffn<gate_argument<0>, none, multiply, argument<3>>>("ffn", {"none", "multiply", "project"}),
    policy<argument<1>, normed<norm_argument<0, true>, argument<1>, "post_norm">,
           normed<norm_argument<0, false>, argument<1>, "post_norm">>("project", {"no_norm", "dense"}),
    policy<linear<"$0">>("linear", {"'proj'"}),
    policy<mixture<router_argument<0>, argument<1>, argument<2>>, mixture<router_argument<0>, argument<1>>>(
        "mixture", {"none"}),
    policy<modulated<argument<0>, argument<1>, fusion_argument<2>>>("modulated", {"multiply"}),
    policy<on_residual<argument<0>>>("on_residual"),
    policy<delayed<argument<0>, 1>>("delayed"),
    policy<parallel<arguments<0>>>("parallel"),
    policy<pre_normed<norm_argument<0, true>, argument<1>>, pre_normed<norm_argument<0, false>, argument<1>>>(
        "pre_normed"),
    policy_alias("branch", "sum(pre_normed(_0, _1), residual_input)"),
    policy_alias("source_block", "_0")};

// The layers of layers.hpp.
inline constexpr policies layers{
    policy_alias("mlp", "ffn(gate(gelu))"),
    policy_alias("swiglu", "ffn(gate(silu), dense)"),
    policy_alias("geglu", "ffn(gate(gelu), dense)"),
    policy_alias("reglu", "ffn(gate(relu), dense)"),
    policy_alias("stem", "ffn(gate(silu), token_embedding)"),
    policy_alias("stem_gate", "ffn(gate(silu, token_embedding), dense)"),
    policy_alias("stem_hybrid", "ffn(gate(silu), sum(dense, token_embedding))"),
    policy_alias("structmoe", "ffn(gate(gelu, sum(dense, routed_low_rank(softmax_topk(top_k=_top_k)))))"),
    policy_alias("structmoe_gated",
                 "ffn(gate(gelu, named(dense, 'up_proj')), routed_low_rank(softmax_topk(top_k=_top_k)))"),
    policy_alias("structmoe_post",
                 "ffn(gate(gelu, named(dense, 'up_proj')), routed_low_rank(softmax_topk(top_k=_top_k)), add)"),
    policy_alias("bank_beside_down", "project(no_norm, sum(dense, routed_low_rank(softmax_topk(top_k=_top_k))))"),
    policy_alias("structmoe_down", "ffn(gate(gelu), none, multiply, bank_beside_down(top_k=_top_k))"),
    policy_alias("memory_output", "project(memory_norm(eps=_eps), named(dense, 'out_proj'))"),
    policy_alias("meki", "ffn(gate(sigmoid), memory_injection, add, memory_output)"),
    policy_alias("meki_mul_sigmoid", "ffn(gate(sigmoid), memory_injection, multiply, memory_output)"),
    policy_alias("meki_add_silu", "ffn(gate(silu), memory_injection, add, memory_output)"),
    policy_alias("meki_mul_silu", "ffn(gate(silu), memory_injection, multiply, memory_output)"),
    policy_alias("meki_training", "ffn(gate(sigmoid), trained_memory, add, memory_output)"),
    policy_alias("meki_training_linear", "ffn(gate(sigmoid), trained_memory(linear_word_memory), add, memory_output)"),
    policy_alias("ple", "ffn(gate(gelu_tanh), memory_injection, multiply, memory_output)"),
    policy_alias("ple_full", "ffn(gate(gelu_tanh), ple_memory, multiply, memory_output)"),
    policy_alias("ple_given", "ffn(gate(gelu_tanh), per_layer_input, multiply, memory_output)"),
    policy_alias("retoken", "modulated(_0, token_modulator)"),
    policy_alias("retoken_folded", "modulated(_0, folded_modulator)"),
    policy_alias("mort", "modulated(_0, modulator_pool(num_layers=_num_layers), add)"),
    policy_alias("mort_given", "modulated(_0, given_modulator(num_layers=_num_layers), add)"),
    policy_alias("moe", "mixture(softmax_topk(top_k=_top_k), _0)"),
    policy_alias("hash_moe", "mixture(hash, _0)"),
    policy_alias("deep_embed", "named(token_embedding, 'deep_embed')"),
    policy_alias("deep_embed_matrix", "through('', routed_embedding(linear_all('in_proj.weight'), "
                                      "pool('deep_embed.weight')), named(dense, 'out_proj'))"),
    policy_alias("deep_embed_1x", "fused(ffn(gate(relu_squared)), deep_embed, multiply)"),
    policy_alias("deep_embed_4x", "ffn(gate(relu_squared), deep_embed)"),
    policy_alias("deep_embed_v7a", "ffn(gate(relu_squared), on_residual(deep_embed_matrix))"),
    policy_alias("lookup_experts", "routed_embedding(softmax_all, pool('lookup.weight'))"),
    policy_alias("mole", "sum(mlp, lookup_experts)"),
    policy_alias("mole_training", "sum(mlp, mixture(softmax_all, through('', per_layer_input, mlp)))"),
    policy_alias("product_key_memory",
                 "routed_embedding(product_keys(top_k=_top_k), chosen_rows('values.weight'))"),
    policy_alias("memory_plus", "ffn(gate(silu), product_key_memory(top_k=_top_k))"),
    policy_alias("peer", "routed_embedding(gated_rows(product_keys(top_k=_top_k), row_activation, "
                         "'down_embed.weight'), chosen_rows('up_embed.weight'))"),
    policy_alias("l3_memory", "through('', routed_embedding(gated_rows(row_range, row_softmax, 'keys.weight'), "
                              "chosen_rows('values.weight')), normed(rms(eps=_eps), named(dense, 'up_proj')), "
                              "named(dense, 'mix_memory'))"),
    policy_alias("l3", "sum(named(dense, 'mix_input'), l3_memory(eps=_eps))"),
    policy_alias("engram", "dot_gated(signed_root_gate, normed(rms(eps=_eps), through('', per_layer_input, "
                           "named(dense, 'key_proj')), 'key_norm'), normed(rms(eps=_eps), source_input, "
                           "'query_norm'), through('', per_layer_input, named(dense, 'value_proj')))"),
    policy_alias("engram_branch", "dot_gated(signed_root_gate, normed(rms(eps=_eps), through('', per_layer_input, "
                                  "named(dense, 'key_proj')), 'key_norm'), normed(rms(eps=_eps), source_input, "
                                  "'query_norm'), residual_input)"),
    policy_alias("longcat_embedding", "mean_of_terms(sum(named(token_embedding, 'word_embed'), through('', "
                                      "per_layer_input, named(dense, 'ngram_proj'))), terms=_terms)"),
    policy_alias("longcat_sparse_embedding", "sum(named(token_embedding, 'word_embed'), mean_of_terms(through('', "
                                             "per_layer_input, named(dense, 'ngram_proj')), terms=_terms))")};

}  // namespace policy_lists
// clang-format on

// All of them. To add a policy of your own: policies mine{policy<my_norm>("my_norm"), all_policies}.
struct library_policies {
    template <class Numbers>
    void add_to(std::vector<plan_detail::policy_line>& lines) const {
        plan_detail::add_library_policies<Numbers>(lines);
    }
};
inline constexpr library_policies all_policies{};

template <class Numbers>
void plan_detail::add_library_policies(std::vector<policy_line>& lines) {
    policy_lists::activations_fusions_norms.add_to<Numbers>(lines);
    policy_lists::routers.add_to<Numbers>(lines);
    policy_lists::sources.add_to<Numbers>(lines);
    policy_lists::blocks.add_to<Numbers>(lines);
    policy_lists::layers.add_to<Numbers>(lines);
}

TIFFIN_END
