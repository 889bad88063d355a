// A source computed for all tokens of a call: the steps per token first, then products and formula in one pass. Without
// products of its own, the formula is the epilogue of the last part of its last chain, or is evaluated by itself.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/cuda/engine/chain.hpp>
#include <tiffin/cuda/engine/steps.hpp>
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
class stage {
    using call_type = typename Target::call;
    using activations = typename Target::activations;
    using preparation = typename Target::preparation;
    using arena = typename Target::arena;
    using view_type = view<Target, Source>;

public:
    static constexpr std::size_t projections = count_of<Source>(tensor_kind::projection);
    // The chain whose last part has the formula as its epilogue.
    static constexpr std::size_t last_chain = projections > 0 ? no_chain : last_chain_of<Source>();

private:
    using steps = decltype(make_steps<Target, last_chain>(
        std::declval<const Source&>(), std::declval<const bound_node&>(), std::declval<const source_sizes&>(),
        std::declval<preparation&>()));

public:
    stage(const Source& source, const bound_node& bound, const source_sizes& sizes, preparation& how)
        : view_{source},
          products_(sizes.outputs, sizes.inputs, given_types(source, bound), how),
          steps_(make_steps<Target, last_chain>(source, bound, sizes, how)),
          chain_(chain_at<Target, last_chain>(source, bound, sizes, how)) {
        view_.outputs = sizes.outputs;
        visit_nodes(
            source,
            [&]<std::size_t First>(const auto& node, const bound_node& of_node) {
                using node_type = std::remove_cvref_t<decltype(node)>;
                [&]<std::size_t... I>(std::index_sequence<I...>) {
                    (keep<own_kinds<node_type>[I], First + I>(of_node.tensors[I], how), ...);
                }
                (std::make_index_sequence<own_tensors_of<node_type>::size>{});
                if constexpr (row_scaled_source<node_type>) view_.tensor_slots[First].state = take_state(1);
            },
            bound);
        for_steps([&](auto& step) { step.describe(view_.tensor_slots, take_state(step.state_numbers())); });
    }

    // Whether it ends in products and a formula; and whether only these products read its input.
    static constexpr bool ends_in_products = projections > 0 && !chained_source<Source>;
    static constexpr bool input_is_multiplied_only =
        ends_in_products && std::tuple_size_v<steps> == 0 && count_of<Source>(tensor_kind::input_row) == 0;
    [[nodiscard]] const auto& products() const noexcept { return products_; }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        lay_out(areas, tokens);
        std::size_t most = products_.workspace_bytes(tokens, workers);
        for_steps([&](const auto& step) { most = std::max(most, step.workspace_bytes(tokens, workers)); });
        if constexpr (last_chain != no_chain) most = std::max(most, chain_.workspace_bytes(tokens, workers));
        areas.template take<std::byte>(most);
        return areas.used();
    }

    // Calls store(token, feature, register, count) for every token and register of outputs.
    template <class Store>
    void run(const call_type& call, const activations& in, std::byte* memory, const Store& store) const {
        arena areas(memory);
        view_type now = view_;
        lay_out(areas, Target::tokens(call), &now);
        tensors_.give(call, now);
        now.input = in;
        std::byte* const work = areas.rest();
        for_steps([&](const auto& step) { step.run(call, in, now, work); });
        if constexpr (chained_source<Source>) {
            chain_.run(call, in, work, store);
        } else if constexpr (last_chain != no_chain) {
            Target::scale_rows(call, now);
            chain_.run(call, in, work, epilogue<view_type, last_chain, Store>{now, store});
        } else if constexpr (projections > 0) {
            Target::scale_rows(call, now);
            Target::multiply(call, products_, in, work, now, store);
        } else {
            Target::evaluate_rows(call, now, store);
        }
    }

private:
    // The formats that the weights of the products are given in.
    static std::array<dtype, projections> given_types(const Source& source, const bound_node& bound) {
        std::array<dtype, projections> types{};
        [[maybe_unused]] std::size_t count = 0;
        visit_nodes(
            source,
            [&]<std::size_t First>(const auto& node, const bound_node& of_node) {
                using node_type = std::remove_cvref_t<decltype(node)>;
                for (std::size_t i = 0; i < own_kinds<node_type>.size(); ++i)
                    if (own_kinds<node_type>[i] == tensor_kind::projection)
                        types[count++] = of_node.tensors[i].type;
            },
            bound);
        return types;
    }
    void lay_out(arena& areas, std::size_t tokens, view_type* to = nullptr) const noexcept {
        for (std::size_t i = 0; i != view_type::row_sources; ++i) {
            const auto rows = Target::table_rows::lay_out(areas, tokens);
            if (to != nullptr) to->rows[i] = rows;
        }
        float* const state = areas.template take<float>(view_.state_numbers * tokens);
        if (to != nullptr) to->state = state;
    }
    std::size_t take_state(std::size_t numbers) noexcept {
        return std::exchange(view_.state_numbers, view_.state_numbers + (numbers + 15) / 16 * 16);
    }
    template <tensor_kind Kind, std::size_t Slot>
    void keep(const tensor_view& t, preparation& how) {
        slot& s = view_.tensor_slots[Slot];
        if constexpr (Kind == tensor_kind::projection) {
            products_.keep(ordinal_of<Source, Slot>, t, how);
        } else if constexpr (Kind == tensor_kind::table || Kind == tensor_kind::pool) {
            constexpr bool pool = Kind == tensor_kind::pool;
            s.table = ordinal_of<Source, Slot> + (pool ? view_type::tables : 0);
            if constexpr (pool) s.expert_step = (t.gathered != 0 ? 1 : t.shape[1]) * view_.outputs;
            tensors_.keep_table(s.table, t, t.shape[pool ? 1 : 0], view_.outputs, how);
        } else if constexpr (Kind == tensor_kind::chosen_rows) {
            s.table = view_type::row_sources + ordinal_of<Source, Slot>;
            s.gathered = t.gathered;
            s.numbers = tensors_.keep_rows(s.table, t, how);
            s.expert_step = view_.outputs;
        } else if constexpr (Kind == tensor_kind::vector) {
            s.numbers = tensors_.keep_vector(t, view_.outputs, how);
        } else if constexpr (Kind == tensor_kind::scalar) {
            s.number = load_as_f32(t, 0);
        } else if constexpr (Kind == tensor_kind::row_width) {
            s.number = static_cast<float>(view_.outputs);
        }
    }
    template <class Visit>
    void for_steps(const Visit& visit) {
        std::apply([&](auto&... step) { (visit(step), ...); }, steps_);
    }
    template <class Visit>
    void for_steps(const Visit& visit) const {
        std::apply([&](const auto&... step) { (visit(step), ...); }, steps_);
    }

    using chain_type = decltype(chain_at<Target, last_chain>(
        std::declval<const Source&>(), std::declval<const bound_node&>(), std::declval<const source_sizes&>(),
        std::declval<preparation&>()));

    view_type view_;
    typename Target::template products<projections> products_;
    typename Target::tensors tensors_;
    steps steps_;
    chain_type chain_;
};

}  // namespace engine_detail

TIFFIN_END
