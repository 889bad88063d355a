// A router by itself: the experts of tokens before anything is read for them.
#pragma once

#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/block/linear.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/router/selection.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The experts that tokens choose, and their weights: what a layer with this router records as its routes, so that no more
// than the chosen rows have to be there when the layer runs (see pool_schedule, sharded_pool).
// Shapes: x (T, d_model), T up to the `tokens` of prepare(); `router.weight` (experts, d_model),
//   `router.selection_bias` (experts, optional); chosen (T, choices()), best first.
// Numerics: those of a layer of the backend: logits in f32, the choice in double.
// Errors: those of prepare(); errc::option for a top_k of 0 or above the experts; errc::size.
// Threads: one call at a time. Cost: 2 experts d_model FLOPs per token; no allocation in a call.
// Source: MoRT Sec. 3.3.2; docs/layers.md#mort.
//
//     auto router = token_router<sigmoid_topk_renorm, simd<>>::prepare({.top_k = 2}, weights, simd{}).or_throw();
//     router(x, chosen).or_throw();
template <learned_router Router, class Backend>
class token_router {
    using logits_layer = layer<linear<"router">, Backend>;

public:
    // `prefix`: of the tensors' names; other tensors may be among those given.
    static result<token_router> prepare(const Router& router, const weights& given, const Backend& backend,
                                        const prepare_options& options = {}, const std::string& prefix = "") {
        weights own;
        if (const auto* const t = given.find(prefix + "router.weight")) own.add("router.weight", *t);
        auto logits = try_prepare(linear<"router">{}, own, backend, options);
        if (!logits) return logits.failure();
        const std::size_t experts = logits->outputs();
        if (status s = detail::check_top_k(router, experts, prefix); !s) return s.failure();
        token_router made(router, *std::move(logits), options.tokens);
        if (const auto* const t = given.find(prefix + "router.selection_bias")) {
            if (t->shape.rank() != 1 || t->shape[0] != experts || is_integer(t->type))
                return failure(errc::shape, prefix + "router.selection_bias", "has shape ",
                               to_string(t->shape), " of ", name_of(t->type), "; it must be (", experts,
                               ") numbers");
            made.bias_.resize(experts);
            read_as_f32(t->data, t->type, 0, experts, made.bias_.data());
        }
        return made;
    }

    [[nodiscard]] std::size_t experts() const noexcept { return layer_.outputs(); }
    [[nodiscard]] std::size_t choices() const noexcept { return choices_among(router_, experts()); }

    template <class X>
    status operator()(const X& x, std::span<choice<float>> chosen, executor_ref execute = serially) {
        auto in = detail::as_rows<const float>(x, layer_.d_model(), "x");
        if (!in) return in.failure();
        const std::size_t tokens = in->rows, n = experts();
        if (tokens * n > logits_.size())
            return failure(errc::size, "x", "has ", tokens, " rows; the router was prepared for ",
                           logits_.size() / n);
        if (chosen.size() != tokens * choices())
            return failure(errc::size, "chosen", "has room for ", chosen.size(), "; ", tokens,
                           " tokens choose ", choices(), " each");
        const matrix_view<float> logits(logits_.data(), tokens, n);
        if (status s = layer_.try_call(*in, token_inputs{}, logits, execute); !s) return s;
        for (std::size_t t = 0; t < tokens; ++t)
            choose(router_, logits.row(t), n, bias_.empty() ? nullptr : bias_.data(), scratch_.data(),
                   chosen.data() + t * choices());
        return {};
    }

private:
    token_router(const Router& router, logits_layer layer, std::size_t tokens)
        : router_(router),
          layer_(std::move(layer)),
          logits_(tokens * layer_.outputs()),
          scratch_(2 * layer_.outputs()) {}

    Router router_;
    logits_layer layer_;
    std::vector<float> logits_;  // (tokens, experts)
    std::vector<double> scratch_;
    std::vector<float> bias_;
};

TIFFIN_END
