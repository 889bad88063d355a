// The place (token, features) of a formula in training: its values, or its values with their partials.
#pragma once

#include <tiffin/grammar/slots.hpp>
#include <tiffin/train/partials.hpp>

#include <array>
#include <cstddef>
#include <utility>

TIFFIN_BEGIN

namespace train_detail {

// What a formula sees in a tensor: a row of it or of the call as it is, a row that is computed, the same number
// everywhere, or nothing, as the router reads it. A kind that is not named here cannot be trained.
enum class seen_as { given_row, computed_row, number, nothing, unknown };
constexpr seen_as how_seen(tensor_kind kind) noexcept {
    using enum tensor_kind;
    switch (kind) {
        case table:
        case vector:
        case given:
        case input_row:
        case residual_row: return seen_as::given_row;
        case projection:
        case low_rank_out:
        case pool:
        case chosen_rows:
        case computed: return seen_as::computed_row;
        case scalar:
        case row_scale:
        case row_width: return seen_as::number;
        case logits:
        case selection_bias:
        case route_map:
        case low_rank_in:
        case query:
        case query_bias:
        case half_keys:
        case row_ranges:
        case row_keys: return seen_as::nothing;
    }
    return seen_as::unknown;
}
constexpr bool is_seen_as_row(tensor_kind kind) noexcept {
    return how_seen(kind) == seen_as::given_row || how_seen(kind) == seen_as::computed_row;
}
constexpr bool is_as_given(tensor_kind kind) noexcept {
    return how_seen(kind) == seen_as::given_row;
}
constexpr bool is_seen_as_number(tensor_kind kind) noexcept {
    return how_seen(kind) == seen_as::number;
}
constexpr bool is_variable(tensor_kind kind) noexcept {
    return is_seen_as_row(kind) || (is_seen_as_number(kind) && kind != tensor_kind::row_width);
}

// The slots of the tree below S that are variables of its formula.
template <source_policy S>
inline constexpr std::size_t variable_count = [] {
    std::size_t n = 0;
    for (const tensor_kind k : detail::slot_kinds<S>) n += is_variable(k) ? 1u : 0u;
    return n;
}();
// The number of slot Slot's among them.
template <source_policy S, std::size_t Slot>
inline constexpr std::size_t variable_of = [] {
    std::size_t n = 0;
    for (std::size_t i = 0; i < Slot; ++i) n += is_variable(detail::slot_kinds<S>[i]) ? 1u : 0u;
    return n;
}();

// What the slots of a tree are for one token.
template <class Number, std::size_t Slots>
struct token_slots {
    std::array<const Number*, Slots + 1> rows{};  // null: zeros
    std::array<Number, Slots + 1> numbers{};
};

// Features [feature, feature + count) of a token, in a register or what the machine has.
template <class M, source_policy S>
struct value_place {
    using number = typename M::number;
    const token_slots<number, slot_count<S>()>& of;
    std::size_t feature;
    std::size_t count;

    template <std::size_t Slot, class Tensor>
    [[nodiscard]] typename M::value value() const {
        static_assert(is_seen_as_row(Tensor::kind) || is_seen_as_number(Tensor::kind),
                      "tiffin: at[tensor]: a tensor of this kind has no value of its own in a formula");
        if constexpr (is_seen_as_number(Tensor::kind))
            return M::all(of.numbers[Slot]);
        else
            return of.rows[Slot] != nullptr ? M::load(of.rows[Slot] + feature, count) : M::all(number(0));
    }
    template <class Formula, class... Values>
    [[nodiscard]] auto by_number(const Formula& formula, const Values&... values) const {
        return M::by_number(formula, values...);
    }
};

template <class M, source_policy S>
struct partials_place {
    using numbers = partials<typename M::value, variable_count<S>>;
    using plain = partials<typename M::number, variable_count<S>>;
    value_place<M, S> values;

    template <std::size_t Slot, class Tensor>
    [[nodiscard]] numbers value() const {
        const auto v = values.template value<Slot, Tensor>();
        if constexpr (is_variable(Tensor::kind))
            return numbers::variable(v, variable_of<S, Slot>);
        else
            return numbers(v);
    }
    // Number by number, each with its partials.
    template <class Formula, class... Values>
    [[nodiscard]] numbers by_number(const Formula& formula, const Values&... given) const {
        constexpr bool is_template =
            std::is_invocable_v<const Formula&, decltype(static_cast<void>(given), plain())...>;
        static_assert(is_template,
                      "tiffin: prepare_training: a formula takes a plain number (float) and nothing else, so "
                      "it has no derivative; write it as a template over its number, as silu is");
        if constexpr (!is_template) {
            return {};
        } else if constexpr (M::width == 1) {
            return numbers(formula(given...));
        } else {
            std::array<std::array<plain, M::width>, sizeof...(Values)> in;
            std::size_t n = 0;
            (spread(given, in[n++]), ...);
            std::array<plain, M::width> out;
            for (std::size_t i = 0; i < M::width; ++i)
                out[i] = [&]<std::size_t... P>(std::index_sequence<P...>) {
                    return plain(formula(in[P][i]...));
                }
            (std::index_sequence_for<Values...>{});
            return joined(out);
        }
    }

private:
    using number = typename M::number;
    static void spread(const numbers& from, std::array<plain, M::width>& to) {
        alignas(64) std::array<number, M::width> lanes;
        M::store(from.value, lanes.data(), M::width);
        for (std::size_t i = 0; i < M::width; ++i) to[i].value = lanes[i];
        for (std::size_t v = 0; v < variable_count<S>; ++v) {
            M::store(from.by[v], lanes.data(), M::width);
            for (std::size_t i = 0; i < M::width; ++i) to[i].by[v] = lanes[i];
        }
    }
    static numbers joined(const std::array<plain, M::width>& from) {
        numbers out;
        alignas(64) std::array<number, M::width> lanes;
        for (std::size_t i = 0; i < M::width; ++i) lanes[i] = from[i].value;
        out.value = M::load(lanes.data(), M::width);
        for (std::size_t v = 0; v < variable_count<S>; ++v) {
            for (std::size_t i = 0; i < M::width; ++i) lanes[i] = from[i].by[v];
            out.by[v] = M::load(lanes.data(), M::width);
        }
        return out;
    }
};

}  // namespace train_detail

TIFFIN_END
