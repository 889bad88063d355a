// A mixture of experts on the device: tokens grouped there, experts one after the other.
#pragma once

#include <tiffin/backend/engine/engine_of.hpp>
#include <tiffin/cuda/modulator_stage.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

TIFFIN_BEGIN

namespace cuda_detail {

// The tokens of one expert: how many, which rows of the call they are, and which entry each one's result is.
// A token's experts are different ones, so that no expert has more tokens than the call.
struct expert_body {
    const std::uint32_t* order;
    const std::uint32_t* starts;  // of this expert and of the next
    token_range tokens;
    std::size_t choices;
    std::uint32_t* span;
    std::uint32_t* in_rows;
    std::uint32_t* out_rows;

    __device__ void operator()(std::size_t i) const {
        const std::uint32_t count = starts[1] - starts[0];
        if (i == 0) {
            span[0] = 0;
            span[1] = count;
        }
        if (i >= count) return;
        const std::uint32_t entry = order[starts[0] + i];
        in_rows[i] = static_cast<std::uint32_t>(tokens.row(entry / choices));
        out_rows[i] = entry;
    }
};

// A token's results, the shared one first, then the experts' by ascending number, whatever their weights.
struct mixed_value {
    chosen_experts chosen;
    const float* entries;
    const float* shared;  // null: there is none
    std::size_t width;

    template <std::size_t N>
    __device__ pack<N> at(std::size_t t, std::size_t feature, std::size_t count) const {
        pack<N> total(0.0f);
        if (shared != nullptr) total = load<f32, N>(shared + t * width + feature, count);
        const choice<float>* const of = chosen.of(t);
        std::int32_t last = -1;
        for (std::size_t n = 0; n < chosen.choices; ++n) {
            std::size_t next = chosen.choices;
            for (std::size_t i = 0; i < chosen.choices; ++i)
                if (of[i].expert > last && (next == chosen.choices || of[i].expert < of[next].expert))
                    next = i;
            last = of[next].expert;
            total = total + pack<N>(of[next].weight) *
                                load<f32, N>(entries + (t * chosen.choices + next) * width + feature, count);
        }
        return total;
    }
};

template <class Target, class Router, class Expert, class Shared>
class mixture_engine {
    using Format = typename Target::format;
    template <class Block>
    using engine_of = engine_detail::engine_of<Target, Block>;
    using block_type = mixture<Router, Expert, Shared>;
    using storage = typename Format::storage;
    static constexpr auto specs = specs_of<route_of<Router>>("");
    static constexpr auto kinds = [] {
        std::array<tensor_kind, specs.size()> all{};
        for (std::size_t i = 0; i < specs.size(); ++i) all[i] = specs[i].kind;
        return all;
    }();

public:
    mixture_engine(const block_type& block, const binding& bound, uploads& up)
        : d_model_(bound.d_model), route_(block.router, bound.tensors, kinds, bound.d_model, up) {
        const std::size_t experts = bound.parts.size() - (block_type::has_shared ? 1 : 0);
        for (std::size_t e = 0; e < experts; ++e) experts_.emplace_back(block.expert, bound.parts[e], up);
        if constexpr (block_type::has_shared) shared_.emplace_back(block.shared, bound.parts[experts], up);
    }

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        device_arena areas;
        lay_out(areas, tokens);
        device_arena routing;
        routing.take<storage>(tokens * d_model_);
        std::size_t most = routing.used() + route_.bytes(tokens);
        for (const auto& e : experts_) most = std::max(most, e.workspace_bytes(tokens, workers));
        if constexpr (block_type::has_shared)
            most = std::max(most, shared_[0].workspace_bytes(tokens, workers));
        return areas.used() + most;
    }

    void run(const device_call<Format>& call) const {
        device_arena areas(call.workspace);
        const memory at = lay_out(areas, call.tokens.most);
        const std::size_t k = route_.choices(), most = call.tokens.most;
        const chosen_experts chosen{at.chosen, 2 * k, k};
        {
            device_arena routing(areas.rest());
            auto* const x = routing.take<storage>(call.tokens.most * d_model_);
            activations<Format> in{};
            if constexpr (learned_router<Router>) in = inputs_of(call, x);
            route_.run(call, in, routing.rest(), at.chosen, 2 * k);
        }
        if (call.routes != nullptr) for_elements(*call.out, most * k, record_body{chosen, call.routes});
        at.groups.fill(*call.out, chosen, call.tokens, experts_.size());
        device_call<Format> inner = call;
        inner.routes = nullptr;
        inner.workspace = areas.rest();
        if constexpr (block_type::has_shared) {
            inner.to = {at.shared, d_model_, true};
            shared_[0].run(inner);
        }
        inner.to = {at.entries, d_model_, true, false, at.out_rows};
        inner.tokens = {most, at.span, at.in_rows};
        for (std::size_t e = 0; e < experts_.size(); ++e) {
            for_elements(*call.out, most,
                         expert_body{at.groups.order, at.groups.starts + e, call.tokens, k, at.span,
                                     at.in_rows, at.out_rows});
            experts_[e].run(inner);
        }
        write_values<Format>(
            *call.out,
            mixed_value{chosen, at.entries, block_type::has_shared ? at.shared : nullptr, d_model_},
            call.tokens, d_model_, finish<Format, no_modulator::view>{call.to, {}});
    }

private:
    struct memory {
        float* chosen;
        grouped_entries<Format> groups;
        std::uint32_t* span;
        std::uint32_t* in_rows;
        std::uint32_t* out_rows;
        float* entries;  // a row an entry, before its weight
        float* shared;
    };
    memory lay_out(device_arena& areas, std::size_t tokens) const noexcept {
        const std::size_t most = tokens * route_.choices();
        auto* const chosen = areas.take<float>(2 * most);
        const grouped_entries<Format> groups = grouped_entries<Format>::lay_out(areas, most, experts_.size());
        auto* const span = areas.take<std::uint32_t>(2);
        auto* const in_rows = areas.take<std::uint32_t>(tokens);
        auto* const out_rows = areas.take<std::uint32_t>(tokens);
        auto* const entries = areas.take<float>(most * d_model_);
        return {chosen,
                groups,
                span,
                in_rows,
                out_rows,
                entries,
                areas.take<float>(block_type::has_shared ? tokens * d_model_ : 0)};
    }

    std::size_t d_model_;
    route_stage<Format, Router> route_;
    std::vector<engine_of<Expert>> experts_;
    std::vector<engine_of<Shared>> shared_;  // one or none
};

}  // namespace cuda_detail

TIFFIN_END
