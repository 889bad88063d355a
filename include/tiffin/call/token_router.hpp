// A router by itself: chooses experts or table rows before anything is read for them.
#pragma once

#include <tiffin/call/prepare.hpp>
#include <tiffin/plan/tensors_needed.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/source/routes_of.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The experts, or rows, that tokens choose, and their weights: the routes that a layer with this router records. With
// it only the chosen rows need to be in memory when the layer runs (see pool_schedule, sharded_pool). For
// pool_schedule, a table whose rows product keys choose is a pool of one token id, with an expert per row.
// Shapes: x (T, d_model), T up to the `tokens` of prepare(); the router's tensors; chosen (T, choices()), best first.
// Numerics: bit-identical to those of a layer of the same backend, whatever its formats; on `eigen`, whose sums depend
//   on it, only in calls of as many tokens and workers.
// Errors: those of prepare() and of the router; errc::size.
// Threads: one call at a time. Cost: the router's, and a copy of x; no allocation in a call.
// Source: MoRT Sec. 3.3.2; docs/layers.md#mort, #product-keys.
//
//     auto router = token_router<sigmoid_topk_renorm, simd<>>::prepare({.top_k = 2}, weights, simd{}).or_throw();
//     router(x, chosen).or_throw();
template <router_policy Router, class Backend>
class token_router {
    static_assert(
        learned_router<Router> || key_router<Router>,
        "tiffin: token_router<Router, Backend>: the router does not read x; what the token's id alone says "
        "is known without it");

public:
    // `prefix`: that of the tensors' names; `given` may hold other tensors too.
    static result<token_router> prepare(const Router& router, const weights& given, const Backend& backend,
                                        const prepare_options& options = {}, const std::string& prefix = "") {
        const routes_of<Router> block{router};
        weights own;
        for (const auto& [name, needed] : tensors_needed(block, {}))
            if (const auto* const t = given.find(prefix + name)) own.add(name, *t);
        auto layer = try_prepare(block, own, backend, options);
        if (!layer)
            return failure(layer.failure().code, prefix + layer.failure().where, layer.failure().what);
        if (!layer->needs().gathered.empty())
            return failure(
                errc::option, prefix + layer->needs().gathered[0].name,
                "is to come with each call; rows are chosen before it does, by a router without it");
        return token_router(*std::move(layer), options.tokens);
    }

    [[nodiscard]] std::size_t choices() const noexcept { return layer_.choices(); }

    template <class X>
    status operator()(const X& x, std::span<choice<float>> chosen, executor_ref execute = serially) {
        const std::size_t d = layer_.d_model();
        auto in = detail::as_rows<const float>(x, d, "x");
        if (!in) return in.failure();
        if (in->rows > tokens_)
            return failure(errc::size, "x", "has ", in->rows, " rows; the router was prepared for ", tokens_);
        if (chosen.size() != in->rows * choices())
            return failure(errc::size, "chosen", "has room for ", chosen.size(), "; ", in->rows,
                           " tokens choose ", choices(), " each");
        const matrix_view<float> copy(copy_.data(), in->rows, d);
        return layer_.try_call(*in, token_inputs{.routes = chosen}, copy, execute);
    }

private:
    token_router(layer<routes_of<Router>, Backend> layer, std::size_t tokens)
        : layer_(std::move(layer)), tokens_(tokens), copy_(tokens * layer_.d_model()) {}

    layer<routes_of<Router>, Backend> layer_;
    std::size_t tokens_;
    std::vector<float> copy_;  // of x, which the layer overwrites
};

TIFFIN_END
