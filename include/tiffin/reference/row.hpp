// A node of a plan for one token, every formula evaluated as it is written.
#pragma once

#include <tiffin/reference/route.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

TIFFIN_BEGIN

namespace reference_detail {

// out[j] = the node at feature j.
template <class Scalar>
class row_evaluator {
    using node_role = detail::node_role;
    using numbers = scalar_numbers<Scalar>;

public:
    explicit row_evaluator(const token_arguments<Scalar>& token) noexcept : token_(token) {}

    // `scratch`: scratch_numbers(s).
    void evaluate(const bound_source& s, const Scalar* x, Scalar* out, Scalar* scratch) const {
        switch (s.node.kind->role) {
            case node_role::chain: return chain(s, x, out, scratch);
            case node_role::mixture: return mixture(s, x, out, scratch);
            case node_role::repeated:
                for (std::size_t i = 0; i < s.bound.parts.size(); ++i) {
                    evaluate(repeated(s, i), x, scratch, scratch + s.bound.width);
                    add(scratch, i == 0, s.bound.width, out);
                }
                return;
            case node_role::residual:
                return evaluate(part(s, 0, token_.d_model), token_.residual, out, scratch);
            case node_role::delay:
                evaluate(part(s, 0, s.inputs), x, out, scratch);
                for (std::size_t j = 0; j < s.bound.width; ++j) {
                    const Scalar due = token_.carried_is_due ? token_.carried[j] : Scalar(0);
                    token_.carried[j] = std::exchange(out[j], due);
                }
                return;
            default: return formula(s, x, out, scratch);
        }
    }

private:
    static bound_source part(const bound_source& s, std::size_t i, std::size_t inputs) {
        return {s.node.parts[i], s.bound.parts[i], inputs};
    }
    // Part i of the repeated ones.
    static bound_source repeated(const bound_source& s, std::size_t i) {
        return {s.node.repeated_part(i), s.bound.parts[s.node.parts.size() + i], s.inputs};
    }
    static void add(const Scalar* row, bool first, std::size_t width, Scalar* to) {
        for (std::size_t j = 0; j < width; ++j) to[j] = first ? row[j] : to[j] + row[j];
    }

    void chain(const bound_source& s, const Scalar* x, Scalar* out, Scalar* scratch) const {
        std::size_t inputs = s.inputs;
        for (std::size_t i = 0; i < s.node.parts.size(); ++i) {
            const std::size_t width = s.bound.parts[i].width;
            const bool last = i + 1 == s.node.parts.size();
            Scalar* const to = last ? out : scratch;
            if (!last) scratch += width;
            evaluate(part(s, i, inputs), x, to, scratch);
            x = to;
            inputs = width;
        }
    }
    // The shared part, then the experts in index order.
    void mixture(const bound_source& s, const Scalar* x, Scalar* out, Scalar* scratch) const {
        const std::size_t width = s.bound.width, choices = s.bound.choices;
        auto* const chosen = reinterpret_cast<choice<Scalar>*>(scratch);
        Scalar* const row = scratch + 2 * choices;
        Scalar* const rest = row + width;
        route(s, token_, x, rest, chosen);
        std::fill_n(out, width, Scalar(0));
        if (!s.node.parts.empty()) evaluate(part(s, 0, s.inputs), x, out, rest);
        for (std::size_t e = 0; e + s.node.parts.size() < s.bound.parts.size(); ++e)
            for (std::size_t i = 0; i < choices; ++i) {
                if (static_cast<std::size_t>(chosen[i].expert) != e) continue;
                evaluate(repeated(s, e), x, row, rest);
                for (std::size_t j = 0; j < width; ++j) out[j] = out[j] + chosen[i].weight * row[j];
            }
    }

    // What the formula of a node has besides values: choices, their rank-r intermediates (A_e x), the scale of its row.
    struct node_state {
        const choice<Scalar>* chosen = nullptr;
        const Scalar* rank_values = nullptr;
        const Scalar* row = nullptr;  // of a norm's part
        Scalar scale{0};
        Scalar width{0};
    };

    void formula(const bound_source& s, const Scalar* x, Scalar* out, Scalar* scratch) const {
        const auto& does = ops<numbers>(s.node);
        const node_role role = s.node.kind->role;
        const std::size_t width = s.bound.width, own = s.bound.tensors.size(), parts = s.node.parts.size();
        if (s.node.kind->sums) return sum(s, x, out, scratch);
        node_state state;
        state.width = Scalar(static_cast<float>(width));
        Scalar* const rows = scratch;
        Scalar* rest = rows + (own + parts) * width;
        if (role == node_role::routed) rest = choose(s, x, rest, state);
        for (std::size_t i = 0; i < parts; ++i)
            evaluate(part(s, i, s.inputs), x, rows + (own + i) * width, rest);
        const Scalar* const first = rows + own * width;
        if (role == node_role::row_norm || role == node_role::row_dot) {
            const Scalar* const second = role == node_role::row_norm ? first : first + width;
            for (std::size_t j = 0; j < width; ++j) rest[j] = first[j] * second[j];
            state.scale = does.scale(s.node.source, sum_in_any_order(rest, width), state.width);
            state.row = first;
        }
        operand<Scalar> in[plan_detail::most_operands];
        std::size_t n = 0;
        const auto read = [&](const Scalar* values) { in[n++] = {values, nullptr, 0, width}; };
        const auto read_tensor = [&](std::size_t i) {
            const tensor_kind kind = s.node.kind->tensors[i].kind;
            if (kind == tensor_kind::row_scale) return read(&state.scale);
            if (kind == tensor_kind::row_width) return read(&state.width);
            tensor_row(s, i, x, state, rows + i * width);
            read(rows + i * width);
        };
        if (does.reads_tensors) {
            for (std::size_t i = 0; i < own; ++i) read_tensor(i);
            for (std::size_t i = 0; i < parts; ++i) read(first + i * width);
        } else if (state.row != nullptr) {
            // The value, its scale, a norm's weight.
            read(first + (parts - 1) * width);
            read(&state.scale);
            for (std::size_t i = 2; i < own; ++i) read_tensor(i);
        } else {
            for (std::size_t i = 0; i < parts; ++i) read(first + i * width);
        }
        does.formula({does.policy(s.node.source), in, 1, width, width, out, width});
    }
    // The sum of a node's tensors and parts, from the first to the last.
    void sum(const bound_source& s, const Scalar* x, Scalar* out, Scalar* scratch) const {
        const std::size_t width = s.bound.width;
        node_state state;
        Scalar* const row = scratch;
        Scalar* rest = row + width;
        if (s.node.kind->role == node_role::routed) rest = choose(s, x, rest, state);
        std::fill_n(out, width, Scalar(0));
        bool first = true;
        for (std::size_t i = 0; i < s.bound.tensors.size(); ++i) {
            const tensor_kind kind = s.node.kind->tensors[i].kind;
            const bool is_absent = kind == tensor_kind::vector && s.bound.tensors[i].data == nullptr;
            if (!plan_detail::has_value(kind) || is_absent) continue;
            tensor_row(s, i, x, state, row);
            add(row, std::exchange(first, false), width, out);
        }
        for (std::size_t i = 0; i < s.node.parts.size(); ++i) {
            evaluate(part(s, i, s.inputs), x, row, rest);
            add(row, std::exchange(first, false), width, out);
        }
    }

    // A leaf's route, and after it in `own` the rank-r intermediates (A_e x) of its choices.
    Scalar* choose(const bound_source& s, const Scalar* x, Scalar* own, node_state& state) const {
        auto* const chosen = reinterpret_cast<choice<Scalar>*>(own);
        Scalar* const z = own + 2 * s.bound.choices;
        const tensor_view bank = s.tensor(tensor_kind::low_rank_in);
        const std::size_t rank = bank.data != nullptr ? bank.shape[1] : 0, n = s.bound.choices * rank;
        route(s, token_, x, z + n, chosen);
        for (std::size_t i = 0; i < n; ++i)
            z[i] = product(bank, static_cast<std::size_t>(chosen[i / rank].expert) * rank + i % rank, x,
                           s.inputs);
        state.chosen = chosen;
        state.rank_values = z;
        return z + n;
    }

    // The values of one of the source's own tensors at every feature.
    void tensor_row(const bound_source& s, std::size_t n, const Scalar* x, const node_state& state,
                    Scalar* to) const {
        const tensor_view& t = s.bound.tensors[n];
        const tensor_kind kind = s.node.kind->tensors[n].kind;
        for (std::size_t j = 0; j < s.bound.width; ++j) to[j] = value(s, t, kind, x, state, j);
    }
    Scalar value(const bound_source& s, const tensor_view& t, tensor_kind kind, const Scalar* x,
                 const node_state& state, std::size_t j) const {
        switch (kind) {
            case tensor_kind::projection: return product(t, j, x, s.inputs);
            case tensor_kind::table: return row_number(t, token_, 0, j);
            case tensor_kind::vector: return t.data != nullptr ? number<Scalar>(t, j) : Scalar(0);
            case tensor_kind::scalar: return number<Scalar>(t, 0);
            case tensor_kind::given: return token_.per_layer_input[j];
            case tensor_kind::residual_row: return token_.residual[j];
            case tensor_kind::input_row: return x[j];
            case tensor_kind::computed: return state.row != nullptr ? state.row[j] : Scalar(0);
            case tensor_kind::pool:
            case tensor_kind::chosen_rows:
            case tensor_kind::low_rank_out: return mixed(s, t, kind, state, j);
            default: return Scalar(0);
        }
    }
    // The sum over the choices (e, w) of w times row e at a feature.
    Scalar mixed(const bound_source& s, const tensor_view& t, tensor_kind kind, const node_state& state,
                 std::size_t j) const {
        const std::size_t choices = s.bound.choices;
        Scalar total(0);
        for (std::size_t i = 0; i < choices && state.chosen[i].expert >= 0; ++i) {
            const auto e = static_cast<std::size_t>(state.chosen[i].expert);
            Scalar one(0);
            if (kind == tensor_kind::pool)
                one = row_number(t, token_, e, j);
            else if (kind == tensor_kind::chosen_rows)
                one = chosen_number(t, token_, state.chosen, choices, i, j);
            else
                one = product(t, e * s.bound.width + j, state.rank_values + i * t.shape[2], t.shape[2]);
            total = total + state.chosen[i].weight * one;
        }
        return total;
    }

    const token_arguments<Scalar>& token_;
};

// Scratch values for a node and for its parts, which are evaluated one after the other.
inline std::size_t scratch_numbers(const bound_source& s, std::size_t d_model) {
    const std::size_t own = s.bound.tensors.size() + s.node.parts.size() + 1;
    std::size_t need = own * s.bound.width, most = 0;
    if (s.node.kind->router != detail::router_kind::none) {
        const tensor_view bank = s.tensor(tensor_kind::low_rank_in);
        need += s.bound.choices * (2 + (bank.data != nullptr ? bank.shape[1] : 0));
        most = route_scratch(s);
    }
    std::size_t inputs = s.node.kind->role == detail::node_role::residual ? d_model : s.inputs;
    for (std::size_t i = 0; i < s.bound.parts.size(); ++i) {
        const bound_node& part = s.bound.parts[i];
        const bool repeats = i >= s.node.parts.size();
        const plan_node& node = repeats ? s.node.repeated_part(i - s.node.parts.size()) : s.node.parts[i];
        most = std::max(most, scratch_numbers({node, part, inputs}, d_model));
        need += s.node.kind->role == detail::node_role::chain ? part.width : 0;
        if (s.node.kind->role == detail::node_role::chain) inputs = part.width;
    }
    return need + std::max(most, s.bound.width);
}

}  // namespace reference_detail

TIFFIN_END
