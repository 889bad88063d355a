#pragma once

#include <tiffin/error.hpp>
#include <tiffin/grammar/option.hpp>
#include <tiffin/grammar/roles.hpp>
#include <tiffin/modulator/modulator_norm.hpp>
#include <tiffin/norm/l2.hpp>
#include <tiffin/scalar.hpp>
#include <tiffin/source/normed.hpp>
#include <tiffin/source/per_layer_input.hpp>
#include <tiffin/source/routed_embedding.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <string_view>
#include <tuple>

TIFFIN_BEGIN

namespace detail {

// The default router of a pool: MoRT's with two experts per token; any other with its own defaults.
template <router_policy Router>
constexpr Router pool_router() {
    static_assert(
        std::default_initializable<Router>,
        "tiffin: modulator_pool<Norm, Router>: the router cannot be made without arguments; give the "
        "pool's `mixed` where you make the block");
    Router router{};
    if constexpr (std::same_as<Router, sigmoid_topk_renorm>) router.top_k = 2;
    return router;
}

// The default source that is mixed.
template <source_policy Mixed>
constexpr Mixed pool_source() {
    if constexpr (routed_source<Mixed>)
        return {pool_router<router_of<Mixed>>()};
    else
        return {};
}

}  // namespace detail

// MoRT's residual: r = s * norm(m) / sqrt(2 num_layers), m the row of Mixed.
// Shapes: m (T, d_model), `scale` (d_model), the tensors of Mixed, r (T, d_model). num_layers counts the layers of the
//   backbone.
// Numerics: those of the norm (l2, rms: eps 1e-6 by default); it cannot be folded, since the norm comes after
//   the mix.
// Errors: num_layers has no default: prepare() refuses 0 with errc::option.
// Cost: that of Mixed, and 5 d_model FLOPs per token, 6 with the sum with F(x).
// Source: MoRT Eq. 3-6; docs/layers.md#mort. Very probably also published as JTok-M, arXiv 2602.00800.
template <norm_policy Norm, source_policy Mixed>
struct mixed_modulator {
    using scale = vector<"scale">;
    using tensors = tensor_list<scale>;
    static constexpr std::string_view name = "";

    normed<Norm, Mixed> mixed{detail::modulator_norm<Norm>(), detail::pool_source<Mixed>()};
    std::size_t num_layers = 0;
    static constexpr auto options() noexcept {
        return std::tuple(option{"num_layers", &mixed_modulator::num_layers});
    }

    [[nodiscard]] status check() const {
        if (num_layers > 0) return {};
        return failure(
            errc::option, "num_layers",
            "is 0; it has no default: it counts the layers of the backbone, and what the pool adds "
            "is divided by sqrt(2 num_layers)");
    }
    TIFFIN_HD constexpr std::tuple<const decltype(mixed)&> parts() const noexcept { return {mixed}; }
    static constexpr double flops() noexcept { return 2; }

    template <class Place, class Value>
    TIFFIN_HD auto operator()(const Place& at, const Value& v) const {
        return at[scale{}] * v / constant<Value>(std::sqrt(2.0 * static_cast<double>(num_layers)));
    }
};

// The same without the divisor: r = s * norm(m), for MoRT's ablation (App. I). Shapes, numerics, cost: as above, a FLOP
// less per feature.
template <norm_policy Norm, source_policy Mixed>
struct undivided_modulator {
    using scale = vector<"scale">;
    using tensors = tensor_list<scale>;
    static constexpr std::string_view name = "";

    normed<Norm, Mixed> mixed{detail::modulator_norm<Norm>(), detail::pool_source<Mixed>()};

    TIFFIN_HD constexpr std::tuple<const decltype(mixed)&> parts() const noexcept { return {mixed}; }
    static constexpr double flops() noexcept { return 1; }

    template <class Place, class Value>
    TIFFIN_HD auto operator()(const Place& at, const Value& v) const {
        return at[scale{}] * v;
    }
};

// The modulator whose rows a router chooses and mixes: m = sum_i w_i E_i[t], i over its choices.
// Shapes: `modulators.weight` (n_e, vocab, d_model), `router.weight` (n_e, d_model).
// Cost: in addition top_k rows, 2 top_k d_model FLOPs per token, and the router's.
//
//     mort<swiglu> block;
//     block.modulator.num_layers = 28;
template <norm_policy Norm = l2, router_policy Router = sigmoid_topk_renorm>
using modulator_pool = mixed_modulator<Norm, routed_embedding<Router>>;

// The modulator whose rows are mixed before the call, where the chosen rows are stored, and given as its
// per_layer_input: see pool_schedule, sharded_pool. Source: MoRT Sec. 3.3.2.
template <norm_policy Norm = l2>
using given_modulator = mixed_modulator<Norm, per_layer_input>;

TIFFIN_END
