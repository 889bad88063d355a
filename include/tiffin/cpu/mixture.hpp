// A mixture of experts on the host: tokens grouped by expert, experts one after the other.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/preparation.hpp>
#include <tiffin/cpu/output.hpp>
#include <tiffin/cpu/router.hpp>
#include <tiffin/engine/mixture.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

TIFFIN_BEGIN

namespace cpu_detail {

// The shared block first, then the experts by ascending number, each for the tokens that chose it.
template <class Target, class Machine, class Source>
class mixture_rows {
    using arena = typename Target::arena;
    using activations = typename Machine::activations;
    static constexpr bool has_shared = engine_detail::mixture_parts<Target, Source>::has_shared;

public:
    mixture_rows(const Source& source, const bound_node& bound, const engine_detail::source_sizes& sizes,
                 const preparation& how)
        : parts_(source, bound, sizes, how) {}

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        engine_detail::pending_rows<Target>(areas, tokens, parts_.sizes.outputs);
        lay_out(areas, tokens);
        return areas.used() + parts_.workspace_bytes(tokens, workers);
    }

    void run(const call_arguments& call, const activations& in, std::byte* memory,
             const output_rows& to) const {
        arena areas(memory);
        const engine_detail::pending_rows<Target> pending(areas, call.tokens, parts_.sizes.outputs);
        const output_rows rows = pending.begin(call, to);
        const grouped at = lay_out(areas, call.tokens);
        parts_.router.run(call, in, areas.rest(), at.chosen);
        if (parts_.recorded) Target::record(call, at.chosen);
        at.groups.sort(call.tokens, parts_.experts.size(), at.chosen);
        if constexpr (has_shared)
            parts_.shared.run(call, in, areas.rest(), rows);
        else
            for (std::size_t t = 0; t < call.tokens; ++t)
                std::memset(rows.row(t), 0, parts_.sizes.outputs * sizeof(float));
        for (std::size_t e = 0; e < parts_.experts.size(); ++e)
            run_expert(e, call, in, areas.rest(), at, rows);
        pending.end(call, to);
    }

private:
    struct grouped {
        engine_detail::chosen_experts chosen;
        grouped_tokens groups;
        typename Machine::buffer in;  // of one expert, as the next three
        std::uint32_t* in_rows;
        std::uint32_t* out_rows;
        float* weights;
    };
    grouped lay_out(arena& areas, std::size_t tokens) const noexcept {
        const std::size_t k = parts_.router.choices();
        auto* const chosen = areas.template take<float>(2 * tokens * k);
        const grouped_tokens groups = grouped_tokens::lay_out(areas, tokens, k, parts_.experts.size());
        auto* const in = areas.template take<float>(Machine::buffer::numbers(tokens, parts_.sizes.inputs));
        auto* const in_rows = areas.template take<std::uint32_t>(tokens);
        auto* const out_rows = areas.template take<std::uint32_t>(tokens);
        return {{chosen, 2 * k, k},
                groups,
                {in, tokens, parts_.sizes.inputs},
                in_rows,
                out_rows,
                areas.template take<float>(tokens)};
    }
    void run_expert(std::size_t e, const call_arguments& call, const activations& in, std::byte* memory,
                    const grouped& at, const output_rows& rows) const {
        const std::uint32_t first = at.groups.starts[e];
        const std::size_t count = at.groups.starts[e + 1] - first, k = parts_.router.choices();
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
        // Where all tokens chose it, in their order, it reads what the mixture reads.
        if (count < call.tokens)
            for_tokens(inner, parts_.sizes.inputs,
                       [&](std::size_t i) noexcept { Machine::copy_token(in, token(i), gathered, i); });
        parts_.experts[e].run(inner, count < call.tokens ? gathered.view() : in, memory,
                              {rows.y, at.out_rows, at.weights, true});
    }

    engine_detail::mixture_parts<Target, Source> parts_;
};

}  // namespace cpu_detail

TIFFIN_END
