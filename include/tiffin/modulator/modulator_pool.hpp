#pragma once

#include <tiffin/norm/l2.hpp>
#include <tiffin/scalar.hpp>
#include <tiffin/source/normed.hpp>
#include <tiffin/source/routed_embedding.hpp>

#include <cmath>
#include <cstddef>
#include <string_view>
#include <tuple>

TIFFIN_BEGIN

// MoRT's residual: r = s * l2(sum_i w_i E_i[t]) / sqrt(2 num_layers), i over the router's choices.
// Shapes: `modulators.weight` (n_e, vocab, d_model), `router.weight` (n_e, d_model), `scale` (d_model),
//   r (T, d_model). num_layers counts the layers of the backbone.
// Numerics: those of the norm; there is no fold, since the norm comes after the mix.
// Cost: top_k rows and about (2 top_k + 5) d_model FLOPs a token, and the router's.
// Source: MoRT Eq. 3-6; SPEC 2.6.
template <norm_policy Norm = l2, router_policy Router = sigmoid_topk_renorm>
struct modulator_pool {
    using scale = vector<"scale">;
    using tensors = tensor_list<scale>;
    static constexpr std::string_view name = "";

    normed<Norm, routed_embedding<Router>> mixed{{}, {{2}}};
    std::size_t num_layers = 1;

    TIFFIN_HD constexpr std::tuple<const decltype(mixed)&> parts() const noexcept { return {mixed}; }
    static constexpr double flops() noexcept { return 2; }

    template <class Place, class Value>
    TIFFIN_HD auto operator()(const Place& at, const Value& v) const {
        return at[scale{}] * v / constant<Value>(std::sqrt(2.0 * static_cast<double>(num_layers)));
    }
};

TIFFIN_END
