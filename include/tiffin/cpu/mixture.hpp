// A mixture of experts on the host: tokens grouped by expert, experts one after the other.
#pragma once

#include <tiffin/cpu/low_rank.hpp>
#include <tiffin/cpu/router.hpp>
#include <tiffin/cpu/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

template <class Machine>
class pending_rows;

// The shared block first, then the experts by ascending index, each for the tokens that chose it.
template <class Machine>
class mixture_rows final : public source_rows<Machine> {
    using arena = detail::arena<64>;
    using activations = typename Machine::activations;

public:
    mixture_rows(const plan_node& node, const bound_node& bound, const source_sizes& sizes,
                 const preparation& how)
        : sizes_(sizes), recorded_(bound.recorded), router_(node, bound, sizes.inputs, how) {
        if (!node.parts.empty()) shared_ = make_rows<Machine>(node.parts[0], bound.parts[0], sizes, how);
        for (std::size_t e = 0, i = node.parts.size(); i < bound.parts.size(); ++e, ++i)
            experts_.push_back(make_rows<Machine>(node.repeated_part(e), bound.parts[i], sizes, how));
    }

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                              std::size_t workers) const noexcept override {
        arena areas;
        pending_rows<Machine>(areas, tokens, sizes_.outputs);
        lay_out(areas, tokens);
        std::size_t most = router_.workspace_bytes(tokens, workers);
        if (shared_) most = std::max(most, shared_->workspace_bytes(tokens, workers));
        for (const auto& e : experts_) most = std::max(most, e->workspace_bytes(tokens, workers));
        return areas.used() + most;
    }

    void run(const call_arguments& call, const activations& in, std::byte* memory,
             const output_rows& to) const override {
        arena areas(memory);
        const pending_rows<Machine> pending(areas, call.tokens, sizes_.outputs);
        const output_rows rows = pending.begin(call, to);
        const grouped at = lay_out(areas, call.tokens);
        router_.run(call, in, areas.rest(), at.chosen);
        if (recorded_) record(call, at.chosen);
        at.groups.sort(call.tokens, experts_.size(), at.chosen);
        if (shared_)
            shared_->run(call, in, areas.rest(), rows);
        else
            for (std::size_t t = 0; t < call.tokens; ++t)
                std::memset(rows.row(t), 0, sizes_.outputs * sizeof(float));
        for (std::size_t e = 0; e < experts_.size(); ++e) run_expert(e, call, in, areas.rest(), at, rows);
        pending.end(call, to);
    }

private:
    struct grouped {
        chosen_experts chosen;
        grouped_tokens groups;
        typename Machine::buffer in;  // of the current expert, as are the next three
        std::uint32_t* in_rows;
        std::uint32_t* out_rows;
        float* weights;
    };
    grouped lay_out(arena& areas, std::size_t tokens) const noexcept {
        const std::size_t k = router_.choices();
        auto* const chosen = areas.template take<float>(2 * tokens * k);
        const grouped_tokens groups = grouped_tokens::lay_out(areas, tokens, k, experts_.size());
        auto* const in = areas.template take<float>(Machine::buffer::numbers(tokens, sizes_.inputs));
        auto* const in_rows = areas.template take<std::uint32_t>(tokens);
        auto* const out_rows = areas.template take<std::uint32_t>(tokens);
        return {{chosen, 2 * k, k},
                groups,
                {in, tokens, sizes_.inputs},
                in_rows,
                out_rows,
                areas.template take<float>(tokens)};
    }
    void run_expert(std::size_t e, const call_arguments& call, const activations& in, std::byte* memory,
                    const grouped& at, const output_rows& rows) const {
        const std::uint32_t first = at.groups.starts[e];
        const std::size_t count = at.groups.starts[e + 1] - first, k = router_.choices();
        if (count == 0) return;
        const auto token = [&](std::size_t i) { return at.groups.order[first + i] / k; };
        for (std::size_t i = 0; i < count; ++i) {
            at.in_rows[i] = static_cast<std::uint32_t>(call.row(token(i)));
            at.out_rows[i] = static_cast<std::uint32_t>(rows.rows ? rows.rows[token(i)] : token(i));
            const std::uint32_t entry = at.groups.order[first + i];
            at.weights[i] = at.chosen.of(token(i))[entry % k].weight;
        }
        call_arguments inner = call;
        inner.rows = at.in_rows;
        inner.tokens = count;
        typename Machine::buffer gathered = at.in;
        gathered.tokens = count;
        // An expert that all tokens chose, in their order, reads the mixture's input directly.
        if (count < call.tokens)
            for_tokens(inner, sizes_.inputs,
                       [&](std::size_t i) noexcept { Machine::copy_token(in, token(i), gathered, i); });
        experts_[e]->run(inner, count < call.tokens ? gathered.view() : in, memory,
                         {rows.y, at.out_rows, at.weights, true});
    }

    source_sizes sizes_;
    bool recorded_;
    router_stage<Machine> router_;
    std::unique_ptr<const source_rows<Machine>> shared_;
    std::vector<std::unique_ptr<const source_rows<Machine>>> experts_;
};

}  // namespace cpu_detail

TIFFIN_END
