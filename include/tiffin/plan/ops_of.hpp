// A policy's formula behind a function: compiled once for each policy and kind of number, whatever it is composed with.
#pragma once

#include <tiffin/grammar/node_kind.hpp>
#include <tiffin/grammar/parts_apart.hpp>
#include <tiffin/grammar/roles.hpp>
#include <tiffin/grammar/slots.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>
#include <tiffin/grammar/tree.hpp>
#include <tiffin/plan/op.hpp>
#include <tiffin/router/row_choice.hpp>
#include <tiffin/router/selection.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

// A kind of number: `number` as values lie in memory, `wide` as routers choose, `reg` as formulas compute.
template <class Numbers>
using number_of = typename Numbers::number;
template <class Numbers>
using ops_for = node_ops<typename Numbers::number, typename Numbers::wide>;

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

// x -> x scale.
template <class Numbers>
void scale(const op_call<number_of<Numbers>>& call) noexcept {
    for_registers<Numbers, 2>(call, [](std::size_t i, const number_of<Numbers>* const* at) {
        return typename Numbers::reg(*at[1]) * load<Numbers>(at[0] + i);
    });
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
// A formula over values alone.
template <class Numbers, class Formula, std::size_t Values>
void formula(const op_call<number_of<Numbers>>& call) noexcept {
    const auto& f = *static_cast<const Formula*>(call.policy);
    for_registers<Numbers, Values>(call, [&](std::size_t i, const number_of<Numbers>* const* at) {
        return [&]<std::size_t... K>(std::index_sequence<K...>) {
            return Numbers::apply(f, load<Numbers>(at[K] + i)...);
        }
        (std::make_index_sequence<Values>{});
    });
}
// x -> norm(x, scale, weight).
template <class Numbers, class Norm>
void norm(const op_call<number_of<Numbers>>& call) noexcept {
    using reg = typename Numbers::reg;
    const auto& f = *static_cast<const Norm*>(call.policy);
    for_registers<Numbers, 2 + Norm::weighted>(call, [&](std::size_t i, const number_of<Numbers>* const* at) {
        reg weight(1);
        if constexpr (Norm::weighted) weight = load<Numbers>(at[2] + i);
        return Numbers::apply(f, load<Numbers>(at[0] + i), reg(*at[1]), weight);
    });
}

constexpr bool is_one_number(tensor_kind kind) noexcept {
    return kind == tensor_kind::scalar || kind == tensor_kind::row_width || kind == tensor_kind::row_scale;
}
constexpr bool has_value(tensor_kind kind) noexcept {
    using enum tensor_kind;
    return is_one_number(kind) || is_row_value(kind) || kind == projection || kind == vector ||
           kind == low_rank_out || kind == computed || kind == given || kind == input_row ||
           kind == residual_row;
}
// The place that a source sees: its own tensors, found by their number.
template <class Numbers>
struct op_place {
    const number_of<Numbers>* const* at;
    std::size_t feature;

    template <std::size_t Slot, class Tensor>
    [[nodiscard]] typename Numbers::reg value() const {
        static_assert(has_value(Tensor::kind),
                      "tiffin: at[tensor]: a tensor of this kind has no value of its own in a formula");
        if constexpr (is_one_number(Tensor::kind))
            return typename Numbers::reg(*at[Slot]);
        else
            return load<Numbers>(at[Slot] + feature);
    }
    template <class Formula>
    [[nodiscard]] typename Numbers::reg by_number(
        const Formula& f, const std::same_as<typename Numbers::reg> auto&... values) const {
        return Numbers::apply(f, values...);
    }
};
// The formula of a source over its tensors and its parts' values.
template <class Numbers, class Source, std::size_t Parts>
void source(const op_call<number_of<Numbers>>& call) noexcept {
    using reg = typename Numbers::reg;
    constexpr std::size_t own = own_tensors_of<Source>::size;
    const auto& s = *static_cast<const Source*>(call.policy);
    for_registers<Numbers, own + Parts>(call, [&](std::size_t i, const number_of<Numbers>* const* at) {
        const op_place<Numbers> here{at, i};
        if constexpr (!composite_source<Source>)
            return reg(s(source_place<Source, 0, op_place<Numbers>>{here}));
        else
            return [&]<std::size_t... K>(std::index_sequence<K...>) {
                return reg(detail::join<0>(s, here, load<Numbers>(at[own + K] + i)...));
            }
        (std::make_index_sequence<Parts>{});
    });
}

// Tensors and parts that an op can read.
inline constexpr std::size_t most_operands = 16;
// Values of parts that a formula may hold at a time, until the op that reads them has all of its own.
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
    if constexpr (detail::kind_of<S>.argument || detail::kind_of<S>.policy || detail::is_sum_of_values<S>) {
        // No formula, or that of what a text names in its place.
    } else if constexpr (row_scaled_source<S> && detail::is_policy_of_values<S>) {
        ops.reads_tensors = false;
        if constexpr (row_normed_source<S>) {
            ops.formula = &norm<Numbers, std::remove_cvref_t<decltype(std::declval<const S&>().norm)>>;
            ops.policy = [](const void* source) -> const void* {
                return &static_cast<const S*>(source)->norm;
            };
        } else {
            ops.formula = &scale<Numbers>;
        }
    } else if constexpr (composite_source<S>) {
        if constexpr (detail::is_policy_of_values<S>) {
            using of = std::remove_cvref_t<decltype(std::declval<const S&>().formula())>;
            ops.formula = &formula<Numbers, of, part_count<S>>;
            ops.reads_tensors = false;
            ops.policy = [](const void* source) -> const void* {
                return &static_cast<const S*>(source)->formula();
            };
        } else if constexpr (!chained_source<S> && !row_source<S>) {
            ops.formula = &source<Numbers, S, part_count<S>>;
        }
    } else {
        ops.formula = &source<Numbers, S, 0>;
    }
    return ops;
}

}  // namespace plan_detail

template <class Numbers, source_policy S>
inline constexpr ops_for<Numbers> ops_of = plan_detail::describe_ops<Numbers, S>();

TIFFIN_END
