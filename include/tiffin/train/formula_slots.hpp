// The slots of a formula in training: their rows before it, and what becomes of their gradients after it.
#pragma once

#include <tiffin/train/places.hpp>
#include <tiffin/train/routed_leaf.hpp>
#include <tiffin/train/slot_gradients.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace train_detail {

//   projection    dx += dz W, dW += dz^T x
//   table         the rows of the tokens' ids += dz
//   vector        += the sum of dz over tokens; a scalar's over features too
//   computed      the gradient of the rows below
//   low_rank_out  through the bank to x and to the router; a pool, or rows, through those chosen to these
//   rows of a call (x, the residual, given ones): += dz
template <class M, source_policy S>
class formula_slots {
    using number = typename M::number;
    using call_type = training_call<number>;
    static constexpr std::size_t count = slot_count<S>();
    static constexpr std::size_t leaves = count_of<S>(tensor_kind::low_rank_out) +
                                          count_of<S>(tensor_kind::pool) +
                                          count_of<S>(tensor_kind::chosen_rows);
    static constexpr auto kinds = [] {
        std::array<tensor_kind, count + 1> all{};
        for (std::size_t i = 0; i < count; ++i) all[i] = detail::slot_kinds<S>[i];
        return all;
    }();

    // Whether a slot's rows are computed for the call, and so is a gradient of as many rows.
    static constexpr bool computes_rows(std::size_t slot) noexcept {
        return is_seen_as_row(kinds[slot]) && !is_as_given(kinds[slot]);
    }
    static constexpr bool adds_over_tokens(tensor_kind kind) noexcept {
        return kind == tensor_kind::vector || kind == tensor_kind::scalar;
    }

public:
    struct buffers {
        std::array<number*, count + 1> rows{};  // (tokens, width)
        std::array<typename routed_leaf<M>::memory, leaves + 1> routed{};
    };
    // Gradients: rows for some slots, sums of each chunk of tokens for others.
    struct sums {
        std::array<number*, count + 1> rows{};
        std::size_t chunks = 0;
    };
    // Those of one token.
    struct target {
        std::array<number*, count + 1> rows{};  // null: not wanted
        std::array<number, count + 1> numbers{};
    };

    formula_slots(const S& source, const bound_node& bound, const engine_detail::source_sizes& sizes,
                  training_preparation<number>& how)
        : width_(sizes.outputs), inputs_(sizes.inputs) {
        tensors_.fill(&how.absent);
        visit_nodes(
            source,
            [&]<std::size_t First>(const auto& node, const bound_node& at) {
                using node_type = std::remove_cvref_t<decltype(node)>;
                for (std::size_t i = 0; i < own_kinds<node_type>.size(); ++i)
                    tensors_[First + i] = how.of(at, i, own_kinds<node_type>[i]);
                add_node<First>(node, at, sizes, how);
            },
            bound);
    }

    buffers lay_out(step_memory& kept, std::size_t tokens) const {
        buffers at;
        for (std::size_t i = 0; i < count; ++i) {
            // The row of a norm's part is computed only where that has products.
            const bool in_place = kinds[i] == tensor_kind::computed && parts_[i] == nullptr;
            if (computes_rows(i) && !in_place) at.rows[i] = kept.take<number>(tokens * width_);
        }
        for (std::size_t i = 0; i < routed_.size(); ++i) at.routed[i] = routed_[i].lay_out(kept, tokens);
        return at;
    }
    sums lay_out_gradients(step_memory& from, std::size_t tokens) const {
        sums to;
        to.chunks = call_type::chunks_of(tokens);
        for (std::size_t i = 0; i < count; ++i) {
            if (adds_over_tokens(kinds[i]))
                to.rows[i] = from.take<number>(to.chunks * sum_width(i));
            else if (computes_rows(i) || kinds[i] == tensor_kind::table)
                to.rows[i] = from.take<number>(tokens * width_);
        }
        return to;
    }
    void keep_parts(step_memory& kept, std::size_t tokens) const {
        for (const auto& part : parts_)
            if (part) part->keep(kept, tokens);
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const {
        std::size_t most = 0;
        if constexpr (count_of<S>(tensor_kind::projection) > 0)
            most = std::max({M::multiply_bytes(tokens, width_, inputs_, workers),
                             M::multiply_bytes(width_, inputs_, tokens, workers),
                             M::multiply_bytes(tokens, inputs_, width_, workers)});
        for (const auto& leaf : routed_) most = std::max(most, leaf.scratch_bytes(tokens, workers));
        for (const auto& part : parts_)
            if (part) most = std::max(most, part->scratch_bytes(tokens, workers));
        return most;
    }

    // Computes the rows of all slots that have some.
    void forward(const call_type& call, const number* x, const buffers& at, step_memory& kept,
                 const step_memory& scratch) const {
        for (std::size_t i = 0; i < count; ++i)
            if (kinds[i] == tensor_kind::projection)
                M::multiply(call, call.tokens, width_, inputs_, {x, inputs_},
                            {tensors_[i]->values(), inputs_}, at.rows[i], false, scratch.rest());
        for (std::size_t i = 0; i < routed_.size(); ++i)
            routed_[i].forward(call, x, at.routed[i], at.rows, scratch);
        for (std::size_t i = 0; i < count; ++i)
            if (parts_[i]) parts_[i]->forward(call, x, at.rows[i], kept, scratch);
    }
    // What the slots are for token t.
    template <std::size_t Slot = 0>
    void point(const call_type& call, const number* x, const buffers& at, std::size_t t,
               token_slots<number, count>& now) const {
        if constexpr (Slot < count) {
            constexpr tensor_kind kind = kinds[Slot];
            if constexpr (computes_rows(Slot))
                now.rows[Slot] = at.rows[Slot] ? at.rows[Slot] + t * width_ : nullptr;
            else if constexpr (is_as_given(kind))
                now.rows[Slot] = given_row<kind>(call, *tensors_[Slot], x, t, width_);
            else if constexpr (kind == tensor_kind::scalar)
                now.numbers[Slot] = *tensors_[Slot]->values();
            else if constexpr (kind == tensor_kind::row_width)
                now.numbers[Slot] = number(static_cast<float>(width_));
            else  // the scale of a norm is computed of these: formula_rows.hpp
                static_assert(
                    kind == tensor_kind::row_scale || how_seen(kind) == seen_as::nothing,
                    "tiffin: prepare_training: a source has a tensor of a kind that cannot be trained; "
                    "places.hpp and formula_slots.hpp say what becomes of each");
            point<Slot + 1>(call, x, at, t, now);
        }
    }

    void clear_sums(const sums& to) const {
        for (std::size_t i = 0; i < count; ++i)
            if (adds_over_tokens(kinds[i])) std::fill_n(to.rows[i], to.chunks * sum_width(i), number(0));
    }
    target targets(const call_type& call, const sums& of, number* dx, std::size_t chunk,
                   std::size_t t) const {
        target to;
        for (std::size_t i = 0; i < count; ++i) {
            const tensor_kind kind = kinds[i];
            if (computes_rows(i) || (kind == tensor_kind::table && tensors_[i]->gradient != nullptr))
                to.rows[i] = of.rows[i] + t * width_;
            else if (kind == tensor_kind::vector && tensors_[i]->gradient != nullptr)
                to.rows[i] = of.rows[i] + chunk * width_;
            else if (kind == tensor_kind::given && call.d_per_layer_input != nullptr)
                to.rows[i] = call.d_per_layer_input + t * width_;
            else if (kind == tensor_kind::residual_row && call.d_residual != nullptr)
                to.rows[i] = call.d_residual + t * width_;
            else if (kind == tensor_kind::input_row && dx != nullptr)
                to.rows[i] = dx + t * width_;
        }
        return to;
    }
    // Adds dy times the partials to a token's gradients. Rows of its own that a slot has are written unless `Add`.
    template <bool Add, class Partials, class Value>
    void deposit(const Partials& by, const Value& dy, std::size_t j, std::size_t n, target& to) const {
        [&]<std::size_t... Slot>(std::index_sequence<Slot...>) {
            (deposit_one<Add, Slot>(by, dy, j, n, to), ...);
        }
        (std::make_index_sequence<count>{});
    }
    void add_numbers(const sums& of, std::size_t chunk, const target& to) const {
        for (std::size_t i = 0; i < count; ++i)
            if (kinds[i] == tensor_kind::scalar) of.rows[i][chunk] = of.rows[i][chunk] + to.numbers[i];
    }

    void backward(const call_type& call, const number* x, const buffers& at, const sums& of, number* dx,
                  step_memory& kept, step_memory scratch) const {
        for (std::size_t i = 0; i < count; ++i) {
            const parameter<number>& p = *tensors_[i];
            if (adds_over_tokens(kinds[i])) add_sums<M>(call, p, sum_width(i), of.chunks, of.rows[i]);
            if (kinds[i] == tensor_kind::table) add_to_ids<M>(call, p, of.rows[i]);
            if (kinds[i] == tensor_kind::projection)
                multiply_back<M>(call, p, {x, inputs_}, {of.rows[i], width_}, dx, scratch);
        }
        for (std::size_t i = 0; i < routed_.size(); ++i)
            routed_[i].backward(call, x, at.routed[i], of.rows, dx, scratch);
        for (std::size_t i = 0; i < count; ++i)
            if (parts_[i]) parts_[i]->backward(call, x, of.rows[i], dx, kept, scratch);
    }

private:
    [[nodiscard]] std::size_t sum_width(std::size_t slot) const noexcept {
        return kinds[slot] == tensor_kind::vector ? width_ : 1;
    }
    template <std::size_t First, class Node>
    void add_node(const Node& node, const bound_node& at, const engine_detail::source_sizes& sizes,
                  training_preparation<number>& how) {
        if constexpr (routed_source<Node>) {
            routed_.emplace_back(node, First, at, sizes, how);
        } else if constexpr (composite_source<Node>) {
            if constexpr (parts_apart<Node>()) {
                constexpr std::size_t row = First + own_tensors_of<Node>::template index_of<computed>();
                if constexpr (row_normed_source<Node>)
                    parts_[row] = make_trained_rows<M>(std::get<0>(node.parts()), at.parts[0], sizes, how);
                else
                    parts_[row] = make_trained_rows<M>(node, at, sizes, how);
            }
        }
    }
    template <bool Add, std::size_t Slot, class Partials, class Value>
    void deposit_one(const Partials& by, const Value& dy, std::size_t j, std::size_t n, target& to) const {
        constexpr tensor_kind kind = kinds[Slot];
        if constexpr (is_variable(kind)) {
            const auto part = dy * by[variable_of<S, Slot>];
            if constexpr (is_seen_as_row(kind)) {
                number* const row = to.rows[Slot];
                if (row == nullptr) return;
                constexpr bool own = computes_rows(Slot) || kind == tensor_kind::table;
                if constexpr (own && !Add)
                    M::store(part, row + j, n);
                else
                    M::store(M::load(row + j, n) + part, row + j, n);
            } else {
                to.numbers[Slot] = to.numbers[Slot] + M::sum(M::first(part, n));
            }
        }
    }

    std::size_t width_;
    std::size_t inputs_;
    std::array<const parameter<number>*, count + 1> tensors_{};
    std::array<std::unique_ptr<const trained_rows<number>>, count + 1> parts_{};
    std::vector<routed_leaf<M>> routed_;
};

}  // namespace train_detail

TIFFIN_END
