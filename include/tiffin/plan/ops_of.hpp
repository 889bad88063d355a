// A policy's formula behind a function: compiled once per policy and arithmetic, whatever it is composed with.
#pragma once

#include <tiffin/grammar/node_kind.hpp>
#include <tiffin/grammar/parts_computed_first.hpp>
#include <tiffin/grammar/roles.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>
#include <tiffin/grammar/tree.hpp>
#include <tiffin/plan/formula.hpp>
#include <tiffin/plan/op.hpp>
#include <tiffin/router/row_choice.hpp>
#include <tiffin/router/selection.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

// An arithmetic (kind of number): `number` is the type in memory, `wide` that of routers, `reg` that of formulas.
template <class Numbers>
using number_of = typename Numbers::number;

namespace plan_detail {

// An arithmetic may have operations of its own: `ops`, and complete<Source, Formula>(ops), which sets them.
template <class Numbers>
struct ops_type {
    using type = formula_ops<typename Numbers::number, typename Numbers::wide>;
};
template <class Numbers>
    requires requires {
        typename Numbers::ops;
    }
struct ops_type<Numbers> {
    using type = typename Numbers::ops;
};

// The type with which a policy calls an activation named by a text: that of routers, or values with derivatives.
template <class Numbers>
struct scalar_call_of {
    using type = typename Numbers::wide;
};
template <class Numbers>
    requires requires {
        typename Numbers::scalar_call_type;
    }
struct scalar_call_of<Numbers> {
    using type = typename Numbers::scalar_call_type;
};
template <class Numbers>
using scalar_call_type = typename scalar_call_of<Numbers>::type;

}  // namespace plan_detail

template <class Numbers>
using ops_for = typename plan_detail::ops_type<Numbers>::type;

namespace plan_detail {

// value(i, at): the register of features i of a panel, whose operands begin at at[0], at[1], ...
template <class Numbers, std::size_t Operands, class Value>
void for_registers(const op_call<number_of<Numbers>>& call, const Value& value) noexcept {
    for (std::size_t t = 0; t < call.tokens; ++t) {
        const number_of<Numbers>* at[Operands];
        for (std::size_t k = 0; k < Operands; ++k) at[k] = call.in[k].of(t);
        number_of<Numbers>* out = call.out + t * call.out_step;
        for (std::size_t done = 0; done < call.features; done += call.panel, out += call.panel) {
            const std::size_t features = std::min(call.panel, call.features - done);
            for (std::size_t i = 0; i < features; i += Numbers::lane_count)
                Numbers::store(value(i, at), out + i, Numbers::lane_count);
            for (std::size_t k = 0; k < Operands; ++k) at[k] += call.in[k].panel_step;
        }
    }
}
template <class Numbers>
typename Numbers::reg load(const number_of<Numbers>* from) noexcept {
    return Numbers::load_row(from, Numbers::lane_count);
}

template <class Numbers>
void copy(const op_call<number_of<Numbers>>& call) noexcept {
    for_registers<Numbers, 1>(
        call, [](std::size_t i, const number_of<Numbers>* const* at) { return load<Numbers>(at[0] + i); });
}
template <class Numbers>
void add(const op_call<number_of<Numbers>>& call) noexcept {
    for_registers<Numbers, 2>(call, [](std::size_t i, const number_of<Numbers>* const* at) {
        return load<Numbers>(at[0] + i) + load<Numbers>(at[1] + i);
    });
}

// The operands of a formula at a register of a panel.
template <class Numbers>
struct register_operands {
    using value_type = typename Numbers::reg;
    const number_of<Numbers>* const* at;
    std::size_t feature;

    template <std::size_t K>
    [[nodiscard]] value_type value() const {
        return load<Numbers>(at[K] + feature);
    }
    template <std::size_t K>
    [[nodiscard]] value_type one_number() const {
        return value_type(*at[K]);
    }
    template <class F, class... Values>
    [[nodiscard]] value_type apply(const F& f, const Values&... values) const {
        return Numbers::apply(f, values...);
    }
};
template <class Numbers, class Formula>
void run(const op_call<number_of<Numbers>>& call) noexcept {
    for_registers<Numbers, Formula::operands.size()>(
        call, [&](std::size_t i, const number_of<Numbers>* const* at) {
            return Formula::value(call.policy, register_operands<Numbers>{at, i});
        });
}

// Tensors and parts that an op can read.
inline constexpr std::size_t most_operands = 16;
// Values of parts that a formula may hold at a time, until the op that reads them has all its operands.
inline constexpr std::size_t most_values = 32;

template <class Numbers, source_policy S>
constexpr ops_for<Numbers> describe_ops() noexcept {
    using number = typename Numbers::number;
    using wide = typename Numbers::wide;
    constexpr std::size_t parts = [] {
        if constexpr (composite_source<S>) return part_count<S>;
        return std::size_t{0};
    }();
    static_assert(detail::is_sum_of_values<S> || own_tensors_of<S>::size + parts <= most_operands,
                  "tiffin: a source reads more than 16 tensors and parts; make it of several");
    static_assert(detail::values_held(detail::kind_of<S>) <= most_values,
                  "tiffin: a formula holds more than 32 values at a time; put a sum, or a part that comes "
                  "first, in another order");
    ops_for<Numbers> ops;
    if constexpr (requires { Numbers::template role<detail::role_of<S>()>; })
        ops.role = Numbers::template role<detail::role_of<S>()>;
    if constexpr (row_scaled_source<S>)
        ops.scale = [](const void* source, const number& sum, const number& width) {
            return static_cast<number>(scale_of_row(*static_cast<const S*>(source), sum, width));
        };
    if constexpr (routing_source<S>) {
        using router = detail::router_of<S>;
        if constexpr (learned_router<router>)
            ops.choose = [](const void* source, const number* logits, std::size_t experts, const number* bias,
                            wide* scratch, choice<number>* chosen) {
                tiffin::choose(static_cast<const S*>(source)->router, logits, experts, bias, scratch, chosen);
            };
        if constexpr (key_router<router>)
            ops.choose_rows = [](const void* source, const number* scores, std::size_t heads,
                                 std::size_t keys, wide* scratch, choice<number>* chosen) {
                const auto& by = static_cast<const S*>(source)->router;
                tiffin::choose_rows(by, scores, heads, keys,
                                    reinterpret_cast<ranked<wide>*>(scratch + by.top_k), scratch, chosen);
            };
        if constexpr (gating_router<router>)
            ops.gate_rows = [](const void* source, const number* products, std::size_t n, wide* scratch,
                               choice<number>* chosen) {
                tiffin::gate_rows(static_cast<const S*>(source)->router, products, n, scratch, chosen);
            };
    }
    ops.policy = [](const void* source) { return source; };
    if constexpr (row_normed_source<S> && detail::is_policy_of_values<S>)
        ops.policy = [](const void* source) -> const void* { return &static_cast<const S*>(source)->norm; };
    else if constexpr (!row_scaled_source<S> && detail::is_policy_of_values<S>)
        ops.policy = [](const void* source) -> const void* {
            return &static_cast<const S*>(source)->formula();
        };
    ops.reads_tensors = !detail::is_policy_of_values<S>;
    using formula = formula_of<S>;
    if constexpr (requires { Numbers::template complete<S, formula>(ops); })
        Numbers::template complete<S, formula>(ops);
    else if constexpr (!std::same_as<formula, no_formula>)
        ops.formula = &run<Numbers, formula>;
    return ops;
}

}  // namespace plan_detail

template <class Numbers, source_policy S>
inline constexpr ops_for<Numbers> ops_of = plan_detail::describe_ops<Numbers, S>();

TIFFIN_END
