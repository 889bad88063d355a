// The steps of a tree per token before its formula: precomputed rows, and the routes of its leaves.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/cuda/engine/chain.hpp>
#include <tiffin/cuda/engine/view.hpp>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace engine_detail {

template <class Target, source_policy Source>
class rows;

// A source whose rows are computed first and stored for the enclosing formula. State: its row.
template <class Target, std::size_t Slot, source_policy Source>
class precomputed_rows {
public:
    precomputed_rows(const Source& source, const bound_node& bound, const source_sizes& sizes,
                     typename Target::preparation& how)
        : width_(sizes.outputs), rows_(source, bound, sizes, how) {}
    [[nodiscard]] std::size_t state_numbers() const noexcept { return width_; }
    void describe(slot* tensor_slots, std::size_t state) noexcept {
        tensor_slots[Slot].state = state_ = state;
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return rows_.workspace_bytes(tokens, workers);
    }
    template <class View>
    void run(const typename Target::call& call, const typename Target::activations& in, const View& view,
             std::byte* memory) const {
        rows_.run(call, in, memory, Target::rows_in(view.state + state_, call, width_, view.state_numbers));
    }

private:
    std::size_t width_;
    std::size_t state_ = 0;
    rows<Target, Source> rows_;
};

// A leaf with a router: its choices, and A_e x for the chosen experts. State: the choices, then A_e x for each.
template <class Target, std::size_t First, routed_source Leaf>
class routed_step {
    static constexpr auto& kinds = own_kinds<Leaf>;

public:
    routed_step(const Leaf& leaf, const bound_node& bound, const source_sizes& sizes,
                typename Target::preparation& how)
        : router_(leaf.router, bound, kinds, sizes.inputs, how), recorded_(bound.recorded) {
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            if (kinds[i] == tensor_kind::low_rank_in) in_.emplace_back(bound.tensors[i], sizes.inputs, how);
            if (kinds[i] == tensor_kind::low_rank_out) out_.emplace_back(bound.tensors[i], how);
        }
    }
    [[nodiscard]] std::size_t state_numbers() const noexcept { return router_.choices() * (2 + rank()); }
    void describe(slot* tensor_slots, std::size_t state) noexcept {
        state_ = state;
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            slot& s = tensor_slots[First + i];
            s.state = state;
            s.choices = router_.choices();
            s.rank = rank();
            if (kinds[i] == tensor_kind::low_rank_out) {
                s.numbers = out_[0].data();
                s.experts = in_[0].experts();
            }
        }
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        std::size_t most = router_.workspace_bytes(tokens, workers);
        for (const auto& in : in_)
            most = std::max(most, in.workspace_bytes(tokens, router_.choices(), workers));
        return most;
    }
    template <class View>
    void run(const typename Target::call& call, const typename Target::activations& in, const View& view,
             std::byte* memory) const {
        const chosen_experts chosen{view.state + state_, view.state_numbers, router_.choices()};
        router_.run(call, in, memory, chosen);
        if (recorded_) Target::record(call, chosen);
        for (const auto& bank : in_) bank.run(call, in, memory, chosen);
    }

private:
    [[nodiscard]] std::size_t rank() const noexcept { return in_.empty() ? 0 : in_[0].rank(); }

    typename Target::template router<std::remove_cvref_t<decltype(std::declval<Leaf>().router)>> router_;
    bool recorded_;
    std::size_t state_ = 0;
    std::vector<typename Target::bank_in> in_;    // one, or none where the leaf has no bank
    std::vector<typename Target::bank_out> out_;  // likewise
};

// The steps of all nodes of the tree below s that need one, parts before the node that has them; not of the chain at
// slot `Last`, whose last part has the formula as its epilogue.
template <class Target, std::size_t Last, std::size_t First = 0, source_policy S>
auto make_steps(const S& s, const bound_node& bound, const source_sizes& sizes,
                typename Target::preparation& how) {
    if constexpr (routed_source<S>) {
        return std::tuple<routed_step<Target, First, S>>(routed_step<Target, First, S>(s, bound, sizes, how));
    } else if constexpr (!composite_source<S>) {
        return std::tuple<>();
    } else if constexpr (chained_source<S> && First == Last) {
        return std::tuple<>();
    } else if constexpr (row_normed_source<S> && parts_computed_first<S>()) {
        // The slot of its part's row.
        constexpr std::size_t row = First + own_tensors_of<S>::template index_of<computed>();
        using step = precomputed_rows<Target, row, part_of<S, 0>>;
        return std::tuple<step>(step(std::get<0>(s.parts()), bound.parts[0], sizes, how));
    } else if constexpr (parts_computed_first<S>()) {
        return std::tuple<precomputed_rows<Target, First, S>>(
            precomputed_rows<Target, First, S>(s, bound, sizes, how));
    } else {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
            const auto& parts = s.parts();
            return std::tuple_cat(make_steps<Target, Last, First + part_offset<S, I>()>(
                std::get<I>(parts), bound.parts[I], sizes, how)...);
        }
        (part_indices<S>{});
    }
}

}  // namespace engine_detail

TIFFIN_END
