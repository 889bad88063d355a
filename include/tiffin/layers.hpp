// The named layers, as compositions of policies. Their mathematics: docs/layers.md, at the anchors given.
#pragma once

#include <tiffin/activation/gelu.hpp>
#include <tiffin/activation/gelu_tanh.hpp>
#include <tiffin/activation/relu.hpp>
#include <tiffin/activation/relu_squared.hpp>
#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/activation/silu.hpp>
#include <tiffin/block/delayed.hpp>
#include <tiffin/block/ffn.hpp>
#include <tiffin/block/mixture.hpp>
#include <tiffin/block/modulated.hpp>
#include <tiffin/block/on_residual.hpp>
#include <tiffin/block/parallel.hpp>
#include <tiffin/block/source_block.hpp>
#include <tiffin/fusion/add.hpp>
#include <tiffin/modulator/modulator_pool.hpp>
#include <tiffin/modulator/token_modulator.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/router/gated_rows.hpp>
#include <tiffin/router/hash.hpp>
#include <tiffin/router/linear.hpp>
#include <tiffin/router/product_keys.hpp>
#include <tiffin/router/row_range.hpp>
#include <tiffin/router/softmax.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/dot_gated.hpp>
#include <tiffin/source/engram_memory.hpp>
#include <tiffin/source/fused.hpp>
#include <tiffin/source/mean_of_terms.hpp>
#include <tiffin/source/memory.hpp>
#include <tiffin/source/named.hpp>
#include <tiffin/source/per_layer_input.hpp>
#include <tiffin/source/ple_memory.hpp>
#include <tiffin/source/routed_embedding.hpp>
#include <tiffin/source/routed_low_rank.hpp>
#include <tiffin/source/source_input.hpp>
#include <tiffin/source/sum.hpp>
#include <tiffin/source/through.hpp>
#include <tiffin/source/token_embedding.hpp>

TIFFIN_BEGIN

// clang-format off
using mlp         = ffn<gate<gelu>, none>;                                  // #mlp
using swiglu      = ffn<gate<silu>, dense>;                                 // #glu
using geglu       = ffn<gate<gelu>, dense>;                                 // #glu
using reglu       = ffn<gate<relu>, dense>;                                 // #glu
using stem        = ffn<gate<silu>, token_embedding>;                       // #stem, Eq. 4
using stem_gate   = ffn<gate<silu, token_embedding>, dense>;                // #stem, Table 3
using stem_hybrid = ffn<gate<silu>, sum<dense, token_embedding>>;           // #stem, Eq. 5

using structmoe       = ffn<gate<gelu, sum<dense, routed_low_rank<>>>, none>;                      // #structmoe, Eq. 5-6
using structmoe_gated = ffn<gate<gelu, named<dense, "up_proj">>, routed_low_rank<>, multiply>;     // App. B.2
using structmoe_post  = ffn<gate<gelu, named<dense, "up_proj">>, routed_low_rank<>, add>;          // post-activation
using bank_beside_down = project<no_norm, sum<dense, routed_low_rank<>>>;
using structmoe_down  = ffn<gate<gelu>, none, multiply, bank_beside_down>;                         // Sec. 3.5

using memory_output    = project<memory_norm, named<dense, "out_proj">>;
using meki             = ffn<gate<sigmoid>, memory_injection, add, memory_output>;                 // #meki, folded
using meki_mul_sigmoid = ffn<gate<sigmoid>, memory_injection, multiply, memory_output>;
using meki_add_silu    = ffn<gate<silu>, memory_injection, add, memory_output>;
using meki_mul_silu    = ffn<gate<silu>, memory_injection, multiply, memory_output>;
using meki_training    = ffn<gate<sigmoid>, trained_memory<>, add, memory_output>;                 // #meki
using meki_training_linear = ffn<gate<sigmoid>, trained_memory<linear_word_memory<>>, add, memory_output>;
using ple              = ffn<gate<gelu_tanh>, memory_injection, multiply, memory_output>;          // #ple, folded
using ple_full         = ffn<gate<gelu_tanh>, ple_memory, multiply, memory_output>;                // with its context
using ple_given        = ffn<gate<gelu_tanh>, per_layer_input, multiply, memory_output>;           // the caller's p

template <class Block> using retoken        = modulated<Block, token_modulator<>, multiply>;       // #retoken, Eq. 1-2
template <class Block> using retoken_folded = modulated<Block, folded_modulator, multiply>;        // Eq. 8
template <class Block> using mort           = modulated<Block, modulator_pool<>, add>;             // Eq. 3-6
template <class Block> using mort_given     = modulated<Block, given_modulator<>, add>;            // rows mixed elsewhere
template <class Block> using moe            = mixture<softmax_topk, Block>;                        // #moe
template <class Block> using hash_moe       = mixture<hash, Block>;                                // #hash-moe

using deep_embed        = named<token_embedding, "deep_embed">;
using deep_embed_matrix = through<"", routed_embedding<linear_all<"in_proj.weight">, pool<"deep_embed.weight">>,
                                  named<dense, "out_proj">>;
using deep_embed_1x     = fused<ffn<gate<relu_squared>, none>, deep_embed, multiply>;              // #deepembed
using deep_embed_4x     = ffn<gate<relu_squared>, deep_embed>;
using deep_embed_v7a    = ffn<gate<relu_squared>, on_residual<deep_embed_matrix>>;

using lookup_experts = routed_embedding<softmax_all, pool<"lookup.weight">>;
using mole           = sum<mlp, lookup_experts>;                                                   // #mole, folded
using mole_training  = sum<mlp, mixture<softmax_all, through<"", per_layer_input, mlp>>>;          // #mole

using product_key_memory = routed_embedding<product_keys, chosen_rows<"values.weight">>;           // #product-keys
using memory_plus    = ffn<gate<silu>, product_key_memory>;                                        // Memory+
using peer_rows      = gated_rows<product_keys, row_activation<gelu>, "down_embed.weight">;
using peer           = routed_embedding<peer_rows, chosen_rows<"up_embed.weight">>;                // #product-keys
using l3_rows        = gated_rows<row_range, row_softmax, "keys.weight">;
using l3_memory      = through<"", routed_embedding<l3_rows, chosen_rows<"values.weight">>,
                               normed<rms, named<dense, "up_proj">>, named<dense, "mix_memory">>;
using l3             = sum<named<dense, "mix_input">, l3_memory>;                                  // #l3

using engram         = dot_gated<signed_root_gate, engram_key, engram_query, engram_value>;        // #engram
using engram_branch  = gated_branch<signed_root_gate>;                                             // of several
using longcat_embedding = mean_of_terms<sum<named<token_embedding, "word_embed">,
                                            through<"", per_layer_input, named<dense, "ngram_proj">>>>; // #longcat
using longcat_sparse_embedding = sum<named<token_embedding, "word_embed">,
                                     mean_of_terms<through<"", per_layer_input, named<dense, "ngram_proj">>>>; // #longcat
// clang-format on

TIFFIN_END
