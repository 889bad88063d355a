// A formula in training: its value, and the gradients of its operands by partials (dual numbers).
#pragma once

#include <tiffin/plan/formula.hpp>
#include <tiffin/train/partials.hpp>
#include <tiffin/train/training_op.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace train_detail {

// The operands of a formula at features [feature, feature + count) of a token.
template <class M>
struct operand_values {
    using number = typename M::number;
    using value_type = typename M::value;
    const number* const* in;
    std::size_t feature, count;

    template <std::size_t K>
    [[nodiscard]] value_type value() const {
        return in[K] != nullptr ? M::load(in[K] + feature, count) : M::all(number(0));
    }
    template <std::size_t K>
    [[nodiscard]] value_type one_number() const {
        return M::all(*in[K]);
    }
    template <class F, class... Values>
    [[nodiscard]] value_type apply(const F& f, const Values&... values) const {
        if constexpr (std::is_invocable_v<const F&, const Values&...>)
            return value_type(f(values...));
        else
            return M::by_number(f, values...);
    }
};

constexpr bool is_variable(plan_detail::operand_is what) noexcept {
    return what == plan_detail::operand_is::row || what == plan_detail::operand_is::number;
}
// How many of the operands before operand k a formula is differentiated by.
template <class Formula>
constexpr std::size_t variables_before(std::size_t k) noexcept {
    std::size_t n = 0;
    for (std::size_t i = 0; i < k; ++i) n += is_variable(Formula::operands[i]) ? 1u : 0u;
    return n;
}

// The same as dual numbers, with partials by the operands that are variables.
template <class M, class Formula>
struct operand_partials {
    using number = typename M::number;
    static constexpr std::size_t variables = variables_before<Formula>(Formula::operands.size());
    using value_type = partials<typename M::value, variables>;
    using plain = partials<number, variables>;
    operand_values<M> values;

    template <std::size_t K>
    [[nodiscard]] value_type value() const {
        return value_type::variable(values.template value<K>(), variables_before<Formula>(K));
    }
    template <std::size_t K>
    [[nodiscard]] value_type one_number() const {
        const auto v = values.template one_number<K>();
        if constexpr (is_variable(Formula::operands[K]))
            return value_type::variable(v, variables_before<Formula>(K));
        else
            return value_type(v);
    }
    // Lane by lane, each with its partials, where a formula takes plain numbers only.
    template <class F, class... Values>
    [[nodiscard]] value_type apply(const F& f, const Values&... given) const {
        if constexpr (std::is_invocable_v<const F&, const Values&...>) {
            return value_type(f(given...));
        } else {
            constexpr bool is_template =
                std::is_invocable_v<const F&, decltype(static_cast<void>(given), plain())...>;
            static_assert(
                is_template,
                "tiffin: prepare_training: a formula takes a plain number (float) and nothing else, so "
                "it has no derivative; write it as a template over its number, as silu is");
            if constexpr (!is_template) {
                return {};
            } else if constexpr (M::width == 1) {
                return value_type(f(given...));
            } else {
                std::array<std::array<plain, M::width>, sizeof...(Values)> in;
                std::size_t n = 0;
                (spread(given, in[n++]), ...);
                std::array<plain, M::width> out;
                for (std::size_t i = 0; i < M::width; ++i)
                    out[i] = [&]<std::size_t... P>(std::index_sequence<P...>) {
                        return plain(f(in[P][i]...));
                    }
                (std::index_sequence_for<Values...>{});
                return joined(out);
            }
        }
    }

private:
    static void spread(const value_type& from, std::array<plain, M::width>& to) {
        alignas(64) std::array<number, M::width> lanes;
        M::store(from.value, lanes.data(), M::width);
        for (std::size_t i = 0; i < M::width; ++i) to[i].value = lanes[i];
        for (std::size_t v = 0; v < variables; ++v) {
            M::store(from.by[v], lanes.data(), M::width);
            for (std::size_t i = 0; i < M::width; ++i) to[i].by[v] = lanes[i];
        }
    }
    static value_type joined(const std::array<plain, M::width>& from) {
        value_type out;
        alignas(64) std::array<number, M::width> lanes;
        for (std::size_t i = 0; i < M::width; ++i) lanes[i] = from[i].value;
        out.value = M::load(lanes.data(), M::width);
        for (std::size_t v = 0; v < variables; ++v) {
            for (std::size_t i = 0; i < M::width; ++i) lanes[i] = from[i].by[v];
            out.by[v] = M::load(lanes.data(), M::width);
        }
        return out;
    }
};

template <class M, class Formula>
void value_of(const training_op_call<typename M::number>& call) noexcept {
    for (std::size_t j = 0; j < call.features; j += M::width) {
        const std::size_t count = std::min(M::width, call.features - j);
        M::store(Formula::value(call.policy, operand_values<M>{call.in, j, count}), call.out + j, count);
    }
}
// d_in (+)= d_out (dvalue / din), register by register; see training_op_call::is_added.
template <class M, class Formula>
void gradients_of(const training_op_call<typename M::number>& call) noexcept {
    using number = typename M::number;
    using at = operand_partials<M, Formula>;
    std::array<typename M::value, at::variables + 1> totals;  // one more, as there may be no variable
    totals.fill(M::all(number(0)));
    for (std::size_t j = 0; j < call.features; j += M::width) {
        const std::size_t count = std::min(M::width, call.features - j);
        const typename at::value_type p(Formula::value(call.policy, at{{call.in, j, count}}));
        const auto d = M::load(call.d_out + j, count);
        const auto give = [&]<std::size_t K>(std::integral_constant<std::size_t, K>) {
            if constexpr (is_variable(Formula::operands[K])) {
                constexpr std::size_t v = variables_before<Formula>(K);
                const auto part = d * p.by[v];
                if constexpr (Formula::operands[K] == plan_detail::operand_is::number)
                    totals[v] = totals[v] + M::first(part, count);
                else if (number* const to = call.d_in[K]; to != nullptr)
                    M::store(call.is_added[K] ? M::load(to + j, count) + part : part, to + j, count);
            }
        };
        [&]<std::size_t... K>(std::index_sequence<K...>) {
            (give(std::integral_constant<std::size_t, K>{}), ...);
        }
        (std::make_index_sequence<Formula::operands.size()>{});
    }
    for (std::size_t k = 0; k < Formula::operands.size(); ++k)
        if (Formula::operands[k] == plan_detail::operand_is::number && call.d_in[k] != nullptr)
            *call.d_in[k] = *call.d_in[k] + M::sum(totals[variables_before<Formula>(k)]);
}

}  // namespace train_detail

TIFFIN_END
