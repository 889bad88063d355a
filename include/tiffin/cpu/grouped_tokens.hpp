// The tokens of a call, sorted by the experts chosen for them.
#pragma once

#include <tiffin/bind/source_sizes.hpp>
#include <tiffin/call/call_arguments.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace cpu_detail {

// How many of the `active` experts that a call has chosen workers take whole, instead of sharing each. Few tokens of an
// expert take little more time than the hand-overs between its products. Large ones, of `numbers` weights, only where
// each worker has several: the last to end is waited for. A multiple of `workers`.
inline constexpr std::size_t few_tokens = 16;
inline constexpr std::size_t whole_experts(std::size_t active, std::size_t numbers, std::size_t tokens,
                                           std::size_t workers) noexcept {
    constexpr std::size_t large = 8 << 20;
    const std::size_t each = active / workers;
    return tokens <= few_tokens && workers > 1 && (numbers <= large || each >= 4) ? each * workers : 0;
}

// Tokens sorted by the expert chosen for them, `choices` experts per token.
struct grouped_tokens {
    std::uint32_t* order;   // (tokens * choices): token * choices + choice, grouped by expert
    std::uint32_t* starts;  // (experts + 1)

    static grouped_tokens lay_out(detail::arena<64>& areas, std::size_t tokens, std::size_t choices,
                                  std::size_t experts) noexcept {
        auto* const order = areas.take<std::uint32_t>(tokens * choices);
        return {order, areas.take<std::uint32_t>(experts + 1)};
    }
    // Within an expert tokens keep their order.
    void sort(std::size_t tokens, std::size_t experts,
              const engine_detail::chosen_experts& chosen) const noexcept {
        const std::size_t choices = chosen.choices;
        std::fill_n(starts, experts + 1, 0u);
        const auto for_all = [&](const auto& visit) {
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t i = 0; i < choices; ++i)
                    visit(static_cast<std::size_t>(chosen.of(t)[i].expert),
                          static_cast<std::uint32_t>(t * choices + i));
        };
        for_all([&](std::size_t e, std::uint32_t) { ++starts[e + 1]; });
        for (std::size_t e = 0; e < experts; ++e) starts[e + 1] += starts[e];
        for_all([&](std::size_t e, std::uint32_t entry) { order[starts[e]++] = entry; });
        for (std::size_t e = experts; e > 0; --e) starts[e] = starts[e - 1];
        starts[0] = 0;
    }
};

// The same, with the rows of x and of y that each choice stands for, and its weight.
struct grouped_choices {
    engine_detail::chosen_experts chosen;
    grouped_tokens groups;
    std::uint32_t* active;   // (experts): those that were chosen, ascending
    std::uint32_t* in_rows;  // (tokens * choices), grouped by expert, as are the next two
    std::uint32_t* out_rows;
    float* weights;

    static grouped_choices lay_out(detail::arena<64>& areas, std::size_t tokens, std::size_t choices,
                                   std::size_t experts) noexcept {
        auto* const chosen = areas.take<float>(2 * tokens * choices);
        const grouped_tokens groups = grouped_tokens::lay_out(areas, tokens, choices, experts);
        auto* const active = areas.take<std::uint32_t>(experts);
        auto* const in_rows = areas.take<std::uint32_t>(tokens * choices);
        auto* const out_rows = areas.take<std::uint32_t>(tokens * choices);
        return {{chosen, 2 * choices, choices},     groups, active, in_rows, out_rows,
                areas.take<float>(tokens * choices)};
    }
    // Returns the number of experts that were chosen. `to`: the rows of the call's tokens.
    std::size_t sort(const call_arguments& call, std::size_t experts, const output_rows& to) const noexcept {
        groups.sort(call.tokens, experts, chosen);
        for (std::size_t p = 0; p < call.tokens * chosen.choices; ++p) {
            const std::size_t token = this->token(p);
            in_rows[p] = static_cast<std::uint32_t>(call.row(token));
            out_rows[p] = static_cast<std::uint32_t>(to.rows ? to.rows[token] : token);
            weights[p] = chosen.of(token)[groups.order[p] % chosen.choices].weight;
        }
        std::size_t count = 0;
        for (std::size_t e = 0; e < experts; ++e)
            if (groups.starts[e + 1] > groups.starts[e]) active[count++] = static_cast<std::uint32_t>(e);
        return count;
    }
    [[nodiscard]] std::size_t token(std::size_t p) const noexcept { return groups.order[p] / chosen.choices; }
};

}  // namespace cpu_detail

TIFFIN_END
