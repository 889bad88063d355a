// A chain: each part reads the rows of the previous one; those of the last go to the caller's store.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/cuda/engine/view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace engine_detail {

template <class Target, source_policy Source>
class stage;

template <class Target, chained_source Chain>
class chain {
    using call_type = typename Target::call;
    using activations = typename Target::activations;
    using preparation = typename Target::preparation;
    using arena = typename Target::arena;
    template <std::size_t I>
    using stage_of = stage<Target, part_of<Chain, I>>;
    static constexpr std::size_t count = part_count<Chain>;
    static constexpr part_indices<Chain> all{};

public:
    chain(const Chain& source, const bound_node& bound, const source_sizes& sizes, preparation& how)
        : widths_(widths_of(bound, all)), stages_(make(source, bound, sizes, how, all)) {}

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            (static_cast<void>(buffer_after<I>(areas, tokens)), ...);
        }
        (std::make_index_sequence<count - 1>{});
        std::size_t most = 0;
        std::apply(
            [&](const auto&... s) { ((most = std::max(most, s.workspace_bytes(tokens, workers))), ...); },
            stages_);
        return areas.used() + most;
    }
    // Calls store(token, feature, register, count) for the last part's rows.
    template <class Store>
    void run(const call_type& call, const activations& in, std::byte* memory, const Store& store) const {
        run_from<0>(call, in, arena(memory), store);
    }

private:
    // Rows that part I writes and the next one reads.
    template <std::size_t I>
    typename Target::buffer buffer_after(arena& areas, std::size_t tokens) const noexcept {
        if constexpr (stage_of<I>::ends_in_products && stage_of<I + 1>::input_is_multiplied_only)
            return {areas, tokens, widths_[I], std::get<I>(stages_).products(),
                    std::get<I + 1>(stages_).products()};
        else
            return {areas, tokens, widths_[I]};
    }
    template <std::size_t I, class Store>
    void run_from(const call_type& call, const activations& in, arena areas, const Store& store) const {
        if constexpr (I + 1 == count) {
            std::get<I>(stages_).run(call, in, areas.rest(), store);
        } else {
            const auto to = buffer_after<I>(areas, Target::tokens(call));
            std::get<I>(stages_).run(call, in, areas.rest(), to.writer());
            run_from<I + 1>(call, to.rows(), areas, store);
        }
    }

    template <std::size_t... I>
    static std::array<std::size_t, count> widths_of(const bound_node& bound, std::index_sequence<I...>) {
        return {{bound.parts[I].width...}};
    }
    template <std::size_t... I>
    static auto make(const Chain& source, const bound_node& bound, const source_sizes& sizes,
                     preparation& how, std::index_sequence<I...>) {
        return std::tuple<stage_of<I>...>{
            stage_of<I>(std::get<I>(source.parts()), bound.parts[I],
                        source_sizes{bound.parts[I].width,
                                     I == 0 ? sizes.inputs : bound.parts[I - (I > 0)].width, sizes.d_model},
                        how)...};
    }

    std::array<std::size_t, count> widths_;
    decltype(make(std::declval<const Chain&>(), std::declval<const bound_node&>(),
                  std::declval<const source_sizes&>(), std::declval<preparation&>(), all)) stages_;
};

inline constexpr std::size_t no_chain = ~std::size_t{0};

// The slot of the last chain in the formula of S, or no_chain. Not counted: chains below a norm, which needs the whole
// row, and those in the dot product of a gate.
template <source_policy S, std::size_t First = 0>
constexpr std::size_t last_chain_of() noexcept {
    std::size_t last = no_chain;
    if constexpr (chained_source<S>)
        last = First;
    else if constexpr (composite_source<S>)
        if constexpr (!parts_computed_first<S>() && !row_normed_source<S>)
            [&]<std::size_t... I>(std::index_sequence<I...>) {
                constexpr std::size_t first = row_dotted_source<S> ? 2 : 0;
                const std::size_t in_parts[] = {
                    (I < first ? no_chain : last_chain_of<part_of<S, I>, First + part_offset<S, I>()>())...,
                    no_chain};
                for (const std::size_t one : in_parts)
                    if (one != no_chain) last = one;
            }
    (part_indices<S>{});
    return last;
}

struct no_engine {
    static constexpr std::size_t workspace_bytes(std::size_t, std::size_t) noexcept { return 0; }
};

// The engine of the chain at a slot of the tree below s.
template <class Target, std::size_t Slot, std::size_t First = 0, source_policy S>
auto chain_at(const S& s, const bound_node& bound, const source_sizes& sizes,
              typename Target::preparation& how) {
    if constexpr (Slot == no_chain) {
        return no_engine{};
    } else if constexpr (chained_source<S>) {
        return chain<Target, S>(s, bound, sizes, how);
    } else {
        constexpr std::size_t part = []<std::size_t... I>(std::index_sequence<I...>) {
            return (std::size_t{0} + ... +
                    (last_chain_of<part_of<S, I>, First + part_offset<S, I>()>() == Slot ? I : 0));
        }
        (part_indices<S>{});
        return chain_at<Target, Slot, First + part_offset<S, part>()>(std::get<part>(s.parts()),
                                                                      bound.parts[part], sizes, how);
    }
}

}  // namespace engine_detail

TIFFIN_END
