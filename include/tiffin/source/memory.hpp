// The memories of MeKi: a token table of small rows, folded or as trained.
#pragma once

#include <tiffin/activation/silu.hpp>
#include <tiffin/fusion/multiply.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/fused.hpp>
#include <tiffin/source/gate.hpp>
#include <tiffin/source/named.hpp>
#include <tiffin/source/normed.hpp>
#include <tiffin/source/scaled.hpp>
#include <tiffin/source/sum.hpp>
#include <tiffin/source/through.hpp>
#include <tiffin/source/token_embedding.hpp>

TIFFIN_BEGIN

// The norm rms with MeKi's eps, 1e-6; for the rest see rms.
struct memory_norm : rms {
    constexpr memory_norm(float epsilon = 1e-6f) noexcept : rms{epsilon} {}
};

// A row of a memory: e = M[t], `memory.weight` (vocab, width). The folded form of a trained memory.
// Source: MeKi Eq. 10; the P of PLE.
using memory_injection = named<token_embedding, "memory">;

// The word embedding through a small SwiGLU: G(E[t]), d -> d / 2 -> width, bias-free.
// Shapes: `word_embed.weight` (vocab, d), `word_proj.{gate,up}_proj.weight` (inner, d),
//   `word_proj.down_proj.weight` (width, inner). Word is the source that G reads.
// Source: MeKi, docs/layers.md#meki.
template <class Word = named<token_embedding, "word_embed">>
using word_memory = through<"word_proj", Word, fused<gate<silu>, dense, multiply>, named<dense, "down_proj">>;

// The same with one matrix, without an activation: `word_proj.weight` (width, d).
template <class Word = named<token_embedding, "word_embed">>
using linear_word_memory = through<"", Word, named<dense, "word_proj">>;

// The word embedding normed first, as the published MeKi code does: `word_norm.weight` (d).
using normed_word = normed<memory_norm, named<token_embedding, "word_embed">, "word_norm">;

// MeKi's memory as it is trained: e = alpha rms(M[t] + beta G(E[t])), with `mix_norm.weight` (width) and
// the scalars `alpha` and `beta`. Numerics: the row of G in f32, the norm over the whole row.
// G: word_memory<Word> or linear_word_memory<Word>, Word with a norm or without.
// Cost: two rows and G per token, which is what folding saves. Source: docs/layers.md#meki.
template <class G = word_memory<>>
using trained_memory =
    scaled<"alpha", normed<memory_norm, sum<memory_injection, scaled<"beta", G>>, "mix_norm">>;
// The trained memory without G (static), and without M (dynamic).
using static_memory = scaled<"alpha", normed<memory_norm, memory_injection, "mix_norm">>;
template <class G = word_memory<>>
using dynamic_memory = scaled<"alpha", normed<memory_norm, scaled<"beta", G>, "mix_norm">>;

TIFFIN_END
