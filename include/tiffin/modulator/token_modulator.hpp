#pragma once

#include <tiffin/modulator/modulator_norm.hpp>
#include <tiffin/norm/l2.hpp>
#include <tiffin/source/named.hpp>
#include <tiffin/source/normed.hpp>
#include <tiffin/source/token_embedding.hpp>

#include <string_view>
#include <tuple>

TIFFIN_BEGIN

// ReToken's modulator: p = 1 + s * l2(E[t]).
// Shapes: t (T), `modulators.weight` (vocab, d_model), `scale` (d_model), p (T, d_model).
// Numerics: those of the norm (l2, rms: eps 1e-6 by default).
// Cost: one row and 5 d_model FLOPs per token, 6 with the product by F(x); the paper's about 4 d_model counts a
//   multiply-add once.
// Source: ReToken Eq. 1; docs/layers.md#retoken. The paper cites RMSNorm but writes l2: RMSNorm is
//   unweighted<rms>.
template <norm_policy Norm = l2>
struct token_modulator {
    using scale = vector<"scale">;
    using tensors = tensor_list<scale>;
    static constexpr std::string_view name = "";

    normed<Norm, named<token_embedding, "modulators">> row{detail::modulator_norm<Norm>(), {}};

    TIFFIN_HD constexpr std::tuple<const decltype(row)&> parts() const noexcept { return {row}; }
    static constexpr double flops() noexcept { return 2; }

    template <class Place, class Value>
    TIFFIN_HD auto operator()(const Place& at, const Value& v) const {
        return Value(1) + at[scale{}] * v;
    }
};

// The modulators after folding: P = 1 + s * l2(E), p = P[t]. Source: ReToken Eq. 8.
using folded_modulator = named<token_embedding, "modulators">;

TIFFIN_END
