// The named layers, as sentences of the grammar.
#pragma once

#include <tiffin/activation/gelu.hpp>
#include <tiffin/activation/relu.hpp>
#include <tiffin/activation/silu.hpp>
#include <tiffin/block/ffn.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/sum.hpp>
#include <tiffin/source/token_embedding.hpp>

TIFFIN_BEGIN

// clang-format off
using mlp         = ffn<gate<gelu>, none>;                                  // SPEC 2.1
using swiglu      = ffn<gate<silu>, dense>;                                 // SPEC 2.1
using geglu       = ffn<gate<gelu>, dense>;                                 // SPEC 2.1
using reglu       = ffn<gate<relu>, dense>;                                 // SPEC 2.1
using stem        = ffn<gate<silu>, token_embedding>;                       // SPEC 2.2, Eq. 4
using stem_gate   = ffn<gate<silu, token_embedding>, dense>;                // SPEC 2.2, Table 3
using stem_hybrid = ffn<gate<silu>, sum<dense, token_embedding>>;           // SPEC 2.2, Eq. 5
                                                                   // clang-format on

TIFFIN_END
