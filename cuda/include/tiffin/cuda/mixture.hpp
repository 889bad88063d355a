// A mixture of experts on the device: tokens grouped by expert, one expert after the other.
#pragma once

#include <tiffin/cuda/engine/mixture.hpp>
#include <tiffin/cuda/grouping.hpp>
#include <tiffin/cuda/router.hpp>
#include <tiffin/cuda/values.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace cuda_detail {

// The tokens of one expert: their count, their indices in the mixture and in the call, and the entries of their
// results. A token's experts are distinct, so that no expert has more tokens than the call.
struct expert_body {
    const std::uint32_t* order;
    const std::uint32_t* starts;  // of this expert and of the next
    token_range tokens;
    std::size_t choices;
    std::uint32_t* span;
    std::uint32_t* numbers;
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
        numbers[i] = static_cast<std::uint32_t>(entry / choices);
        in_rows[i] = static_cast<std::uint32_t>(tokens.row(entry / choices));
        out_rows[i] = entry;
    }
};

// A token's result: the shared block's row first, then the weighted rows of the experts by ascending index.
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

// The shared block, then the experts, each for the tokens that chose it; the weighted sum at the end.
template <class Target, class Source>
class mixture_rows {
    using Format = typename Target::format;
    using storage = typename Format::storage;
    static constexpr bool has_shared = engine_detail::mixture_parts<Target, Source>::has_shared;

public:
    mixture_rows(const Source& source, const bound_node& bound, const engine_detail::source_sizes& sizes,
                 uploads& up)
        : parts_(source, bound, sizes, up) {}

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        device_arena areas;
        lay_out(areas, tokens);
        return areas.used() + parts_.workspace_bytes(tokens, workers);
    }

    void run(const device_call<Format>& call, const activations<Format>& in, std::byte* memory,
             const device_rows<Format>& to) const {
        device_arena areas(memory);
        const std::size_t k = parts_.router.choices(), most = call.tokens.most, width = parts_.sizes.outputs;
        const grouped at = lay_out(areas, most);
        parts_.router.run(call, in, areas.rest(), at.chosen);
        if (parts_.recorded) Target::record(call, at.chosen);
        at.groups.fill(*call.out, at.chosen, call.tokens, parts_.experts.size());
        if constexpr (has_shared) parts_.shared.run(call, in, areas.rest(), {at.shared, width, true});
        device_call<Format> inner = call;
        inner.tokens = {most, at.span, at.in_rows};
        for (std::size_t e = 0; e < parts_.experts.size(); ++e) {
            for_elements(*call.out, most,
                         expert_body{at.groups.order, at.groups.starts + e, call.tokens, k, at.span,
                                     at.numbers, at.in_rows, at.out_rows});
            gather<Format>(*call.out, in, at.numbers, inner.tokens, parts_.sizes.inputs, at.in);
            parts_.experts[e].run(inner, {at.in, parts_.sizes.inputs}, areas.rest(),
                                  {at.entries, width, true, false, at.out_rows});
        }
        write_values<Format>(*call.out,
                             mixed_value{at.chosen, at.entries, has_shared ? at.shared : nullptr, width},
                             call.tokens, width, typename Target::put{to});
    }

private:
    struct grouped {
        chosen_experts chosen;
        grouped_entries<Format> groups;
        storage* in;  // of one expert, as the next four
        std::uint32_t* span;
        std::uint32_t* numbers;
        std::uint32_t* in_rows;
        std::uint32_t* out_rows;
        float* entries;  // a row per entry, without its weight
        float* shared;
    };
    grouped lay_out(device_arena& areas, std::size_t tokens) const noexcept {
        const std::size_t k = parts_.router.choices();
        auto* const chosen = areas.take<float>(2 * tokens * k);
        const auto groups = grouped_entries<Format>::lay_out(areas, tokens * k, parts_.experts.size());
        auto* const in = areas.take<storage>(tokens * parts_.sizes.inputs);
        auto* const span = areas.take<std::uint32_t>(2);
        auto* const numbers = areas.take<std::uint32_t>(tokens);
        auto* const in_rows = areas.take<std::uint32_t>(tokens);
        auto* const out_rows = areas.take<std::uint32_t>(tokens);
        auto* const entries = areas.take<float>(tokens * k * parts_.sizes.outputs);
        auto* const shared = areas.take<float>(has_shared ? tokens * parts_.sizes.outputs : 0);
        return {{chosen, 2 * k, k}, groups, in, span, numbers, in_rows, out_rows, entries, shared};
    }

    engine_detail::mixture_parts<Target, Source> parts_;
};

}  // namespace cuda_detail

TIFFIN_END
