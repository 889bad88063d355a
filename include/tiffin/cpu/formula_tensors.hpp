// The tensors that a formula of a plan keeps, and the ops that read them.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/preparation.hpp>
#include <tiffin/bind/stored_numbers.hpp>
#include <tiffin/cpu/block_formula.hpp>
#include <tiffin/cpu/formula_rows.hpp>
#include <tiffin/cpu/packed_bank.hpp>
#include <tiffin/plan/lower.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

// The tensors of the nodes of one formula.
template <class Machine>
class formula_tensors {
public:
    // A node's part of the per-token state: its precomputed row (its part's, if it is a norm), the scale of its row,
    // its choices.
    struct node_state {
        std::uint32_t row = 0, scale = 0;
        std::size_t choices_at = 0, choices = 0, rank = 0;
        bool has_row = false;
    };

    // Reserves floats in the per-token state and returns their offset.
    std::uint32_t take_state(std::size_t numbers) noexcept {
        return static_cast<std::uint32_t>(
            std::exchange(state_numbers_, state_numbers_ + (numbers + 15) / 16 * 16));
    }
    [[nodiscard]] std::size_t state_numbers() const noexcept { return state_numbers_; }
    node_state& state_of(const plan_node& node) { return nodes_[&node].state; }

    // Keeps the tensors of a node of known state. `sums`: the index of its first projection, advanced past its last.
    void keep(const plan_node& node, const bound_node& bound, std::size_t width, std::uint32_t& sums,
              const preparation& how) {
        kept_node& kept = nodes_[&node];
        for (std::size_t i = 0; i < bound.tensors.size(); ++i)
            kept.own.push_back(
                keep(node.kind->tensors[i].kind, bound.tensors[i], kept.state, width, sums, how));
    }
    // Adds the ops of a node to a formula and returns where its value is stored. `last`: the chain whose epilogue the
    // formula is.
    value_ref add_ops(const plan_node& node, const plan_node* last, block_formula<Machine>& to) const;

    // Drops the pointers to plan nodes, once the formula is complete.
    void forget_nodes() noexcept { nodes_.clear(); }

private:
    struct kept_tensor {
        bool is_absent = true;  // it has no value
        value_ref value{};
        row_tensor row{};  // where value.where is row
    };
    struct kept_node {
        node_state state;
        std::vector<kept_tensor> own;
    };

    kept_tensor keep(tensor_kind kind, const tensor_view& t, const node_state& state, std::size_t width,
                     std::uint32_t& sums, const preparation& how);
    kept_tensor keep_row(tensor_kind kind, const tensor_view& t, const node_state& state, std::size_t width,
                         const preparation& how);
    const float* keep_number(float number) {
        numbers_.push_back(number);
        return &numbers_.back();
    }
    value_ref value_of(const kept_tensor& t, block_formula<Machine>& to) const {
        if (t.is_absent) return {value_ref::from::zeros, 0, nullptr};
        if (t.value.where != value_ref::from::row) return t.value;
        to.rows.push_back(t.row);
        return {value_ref::from::row, static_cast<std::uint32_t>(to.rows.size() - 1), nullptr};
    }

    std::map<const plan_node*, kept_node> nodes_;
    std::size_t state_numbers_ = 0;
    std::deque<stored_numbers> stored_;
    std::deque<packed_bank> banks_;
    std::deque<float> numbers_;
};

template <class Machine>
auto formula_tensors<Machine>::keep(tensor_kind kind, const tensor_view& t, const node_state& state,
                                    std::size_t width, std::uint32_t& sums, const preparation& how)
    -> kept_tensor {
    using from = value_ref::from;
    switch (kind) {
        case tensor_kind::projection: return {false, {from::sum, sums++, nullptr}, {}};
        case tensor_kind::row_scale: return {false, {from::scale, state.scale, nullptr}, {}};
        case tensor_kind::scalar: return {false, {from::number, 0, keep_number(load_as_f32(t, 0))}, {}};
        case tensor_kind::row_width:
            return {false, {from::number, 0, keep_number(static_cast<float>(width))}, {}};
        case tensor_kind::computed:
            if (!state.has_row) return {};
            return {false, {from::state, state.row, nullptr}, {}};
        case tensor_kind::vector:
            if (t.data == nullptr) return {};
            stored_.emplace_back(t, (width + 15) / 16 * 16);
            how.hold(stored_.back().own_bytes());
            return {false, {from::vector, 0, stored_.back().floats()}, {}};
        case tensor_kind::low_rank_out:
        case tensor_kind::table:
        case tensor_kind::pool:
        case tensor_kind::chosen_rows:
        case tensor_kind::given:
        case tensor_kind::residual_row:
        case tensor_kind::input_row: return keep_row(kind, t, state, width, how);
        default: return {};
    }
}

template <class Machine>
auto formula_tensors<Machine>::keep_row(tensor_kind kind, const tensor_view& t, const node_state& state,
                                        std::size_t width, const preparation& how) -> kept_tensor {
    row_tensor row{kind};
    row.width = width;
    row.expert_step = 1;
    row.choices = state.choices;
    row.state = state.choices_at;
    row.rank = state.rank;
    if (kind == tensor_kind::low_rank_out) {
        row.bank = &banks_.emplace_back(t, how);
    } else if (holds_rows(kind)) {
        const number_format format = format_of_table(how.formats, t.type);
        stored_.emplace_back(t, format);
        how.hold(stored_.back().own_bytes());
        if (t.gathered == 0) how.done(t);
        row.kept = kept_rows(t, format, stored_.back());
        row.gathered = t.gathered;
        if (kind == tensor_kind::pool) row.expert_step = t.shape[1];
    }
    return {false, {value_ref::from::row, 0, nullptr}, row};
}

template <class Machine>
value_ref formula_tensors<Machine>::add_ops(const plan_node& node, const plan_node* last,
                                            block_formula<Machine>& to) const {
    using from = value_ref::from;
    if (&node == last) return {from::chain_output, 0, nullptr};
    const kept_node& kept = nodes_.at(&node);
    const detail::node_role role = node.kind->role;
    if (kept.state.has_row && role != detail::node_role::row_norm)
        return {from::state, kept.state.row, nullptr};
    const ops_for<Machine>& does = ops<Machine>(node);
    if (!node.kind->sums) {
        const bool scaled = role == detail::node_role::row_norm || role == detail::node_role::row_dot;
        std::vector<value_ref> parts, in;
        if (kept.state.has_row)
            parts.push_back({from::state, kept.state.row, nullptr});
        else if (scaled && !does.reads_tensors)
            parts.push_back(add_ops(node.parts.back(), last, to));
        else
            for (const plan_node& part : node.parts) parts.push_back(add_ops(part, last, to));
        if (does.reads_tensors) {
            for (const kept_tensor& t : kept.own) in.push_back(value_of(t, to));
            in.insert(in.end(), parts.begin(), parts.end());
        } else {
            // Operands of a norm or a gated row: the value, its scale, a norm's weight.
            in = parts;
            if (scaled) in.push_back({from::scale, kept.state.scale, nullptr});
            for (std::size_t i = 2; scaled && i < kept.own.size(); ++i)
                in.push_back(value_of(kept.own[i], to));
        }
        return to.add(does.formula, does.policy(node.source), in);
    }
    std::optional<value_ref> sum;
    const auto term = [&](const value_ref& v) {
        sum = sum ? to.add(&plan_detail::add<Machine>, nullptr, {*sum, v}) : v;
    };
    for (const kept_tensor& t : kept.own)
        if (!t.is_absent) term(value_of(t, to));
    for (const plan_node& part : node.parts) term(add_ops(part, last, to));
    return sum ? *sum : value_ref{from::zeros, 0, nullptr};
}

}  // namespace cpu_detail

TIFFIN_END
