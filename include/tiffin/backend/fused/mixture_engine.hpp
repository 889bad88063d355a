// A mixture of experts on any machine: tokens grouped by expert, experts one after the other.
#pragma once

#include <tiffin/backend/engine/combined.hpp>
#include <tiffin/backend/fused/routes.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

TIFFIN_BEGIN

namespace fused_detail {

template <class Target, class Router, class Expert, class Shared>
class mixture_engine {
    using machine = typename Target::machine;
    using pending_rows = engine_detail::pending_rows<Target>;
    template <class Block>
    using engine_of = engine_detail::engine_of<Target, Block>;
    using block_type = mixture<Router, Expert, Shared>;
    static constexpr auto specs = specs_of<route_of<Router>>("");

public:
    mixture_engine(const block_type& block, const binding& bound)
        : d_model_(bound.d_model), route_(block.router, bound.tensors, kinds, bound.d_model) {
        const std::size_t experts = bound.parts.size() - (block_type::has_shared ? 1 : 0);
        for (std::size_t e = 0; e < experts; ++e) experts_.emplace_back(block.expert, bound.parts[e]);
        if constexpr (block_type::has_shared) shared_.emplace_back(block.shared, bound.parts[experts]);
    }

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        lay_out(areas, tokens);
        arena routing;
        routing.take<float>(router_input_numbers(tokens));
        std::size_t most = routing.used() + route_.workspace_bytes(tokens, workers);
        for (const auto& e : experts_) most = std::max(most, e.workspace_bytes(tokens, workers));
        if constexpr (block_type::has_shared)
            most = std::max(most, shared_[0].workspace_bytes(tokens, workers));
        return pending_rows::bytes(tokens, d_model_) + areas.used() + most;
    }

    void run(const call_arguments& call) const {
        arena areas(call.workspace);
        const pending_rows rows(call, d_model_, areas);
        const memory at = lay_out(areas, call.tokens);
        const std::size_t k = route_.choices();
        route(call, at, areas);
        call_arguments inner = call;
        inner.routes = nullptr;
        inner.to = rows.to();
        inner.workspace = areas.rest();
        if constexpr (block_type::has_shared)
            shared_[0].run(inner);
        else
            for (std::size_t t = 0; t < call.tokens; ++t)
                std::memset(inner.to.row(t), 0, d_model_ * sizeof(float));
        for (std::size_t e = 0; e < experts_.size(); ++e) {
            const std::uint32_t first = at.groups.starts[e];
            const std::size_t count = at.groups.starts[e + 1] - first;
            if (count == 0) continue;
            for (std::size_t i = 0; i < count; ++i) {
                const std::uint32_t entry = at.groups.order[first + i];
                const std::size_t t = entry / k;
                at.in_rows[i] = static_cast<std::uint32_t>(call.row(t));
                at.out_rows[i] = static_cast<std::uint32_t>(rows.to().rows ? rows.to().rows[t] : t);
                at.weights[i] = at.chosen[entry].weight;
            }
            inner.rows = at.in_rows;
            inner.tokens = count;
            inner.to = {rows.to().y, at.out_rows, at.weights, true};
            experts_[e].run(inner);
        }
        rows.deliver(call, d_model_);
    }

private:
    static constexpr auto kinds = [] {
        std::array<tensor_kind, specs.size()> all{};
        for (std::size_t i = 0; i < specs.size(); ++i) all[i] = specs[i].kind;
        return all;
    }();
    struct memory {
        choice<float>* chosen;
        grouped_tokens groups;
        std::uint32_t* in_rows;
        std::uint32_t* out_rows;
        float* weights;
    };
    memory lay_out(arena& areas, std::size_t tokens) const noexcept {
        const std::size_t k = route_.choices();
        auto* const chosen = areas.take<choice<float>>(tokens * k);
        const grouped_tokens groups = grouped_tokens::lay_out(areas, tokens, k, experts_.size());
        auto* const in_rows = areas.take<std::uint32_t>(tokens * k);
        auto* const out_rows = areas.take<std::uint32_t>(tokens * k);
        return {chosen, groups, in_rows, out_rows, areas.take<float>(tokens * k)};
    }
    [[nodiscard]] std::size_t router_input_numbers(std::size_t tokens) const noexcept {
        return learned_router<Router> ? machine::input_numbers(tokens, d_model_) : 0;
    }
    void route(const call_arguments& call, const memory& at, arena areas) const {
        const std::size_t k = route_.choices();
        const auto chosen = [&](std::size_t t) { return at.chosen + t * k; };
        float* const x = areas.take<float>(router_input_numbers(call.tokens));
        typename machine::activations in{};
        if constexpr (learned_router<Router>) in = machine::inputs(call, x);
        route_.run(call, in, areas.rest(), chosen);
        if (call.routes != nullptr) std::copy_n(at.chosen, call.tokens * k, call.routes);
        at.groups.sort(call.tokens, k, experts_.size(), chosen);
    }

    std::size_t d_model_;
    router_stage<machine, Router> route_;
    std::vector<engine_of<Expert>> experts_;
    std::vector<engine_of<Shared>> shared_;  // one or none
};

}  // namespace fused_detail

TIFFIN_END
