// A policy's formula at one feature, whatever reads its operands: registers, or values with their derivatives.
#pragma once

#include <tiffin/grammar/node_kind.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>
#include <tiffin/grammar/tree.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace plan_detail {

// How a formula reads an operand: a row, one value per token, one value determined by the sizes alone, or not at all.
// Unknown: a kind that read_as() does not name.
enum class operand_is : unsigned char { row, number, size, nothing, unknown };

constexpr operand_is read_as(tensor_kind kind) noexcept {
    using enum tensor_kind;
    switch (kind) {
        case projection:
        case table:
        case vector:
        case low_rank_out:
        case pool:
        case chosen_rows:
        case computed:
        case given:
        case input_row:
        case residual_row: return operand_is::row;
        case scalar:
        case row_scale: return operand_is::number;
        case row_width: return operand_is::size;
        case logits:
        case selection_bias:
        case route_map:
        case low_rank_in:
        case query:
        case query_bias:
        case half_keys:
        case row_ranges:
        case row_keys: return operand_is::nothing;
    }
    return operand_is::unknown;
}
constexpr bool is_one_number(tensor_kind kind) noexcept {
    return read_as(kind) == operand_is::number || read_as(kind) == operand_is::size;
}
constexpr bool has_value(tensor_kind kind) noexcept {
    return read_as(kind) == operand_is::row || is_one_number(kind);
}

// A formula lists its operands, and computes value(policy, at): at.value<K>() is operand K, at.one_number<K>() if it
// has one value per token, at.apply(f, values...) is f value by value where it takes plain scalars only.
struct no_formula {};

// x scale.
struct scaled_value {
    static constexpr std::array<operand_is, 2> operands{{operand_is::row, operand_is::number}};

    template <class Operands>
    static auto value(const void*, const Operands& at) {
        return at.template one_number<1>() * at.template value<0>();
    }
};

template <std::size_t N>
constexpr auto all_rows() noexcept {
    std::array<operand_is, N> all{};
    all.fill(operand_is::row);
    return all;
}
// A policy of its parts' values only.
template <class Formula, std::size_t Values>
struct formula_of_values {
    static constexpr std::array operands = all_rows<Values>();

    template <class Operands>
    static typename Operands::value_type value(const void* policy, const Operands& at) {
        return [&]<std::size_t... K>(std::index_sequence<K...>) {
            return at.apply(*static_cast<const Formula*>(policy), at.template value<K>()...);
        }
        (std::make_index_sequence<Values>{});
    }
};

// norm(x, scale, weight).
template <class Norm>
struct norm_of_value {
    static constexpr auto list() noexcept {
        std::array<operand_is, 2 + Norm::weighted> all{{operand_is::row, operand_is::number}};
        if constexpr (Norm::weighted) all[2] = operand_is::row;
        return all;
    }
    static constexpr std::array operands = list();

    template <class Operands>
    static typename Operands::value_type value(const void* policy, const Operands& at) {
        typename Operands::value_type weight(1);
        if constexpr (Norm::weighted) weight = at.template value<2>();
        return at.apply(*static_cast<const Norm*>(policy), at.template value<0>(),
                        at.template one_number<1>(), weight);
    }
};

// The formula of a source over its tensors and its parts' values.
template <class Source, std::size_t Parts>
struct formula_of_source {
    static constexpr std::size_t own = own_tensors_of<Source>::size;
    static constexpr auto list() noexcept {
        std::array<operand_is, own + Parts> all = all_rows<own + Parts>();
        for (std::size_t i = 0; i < own; ++i) all[i] = read_as(own_kinds<Source>[i]);
        return all;
    }
    static constexpr std::array operands = list();

    // The place as a source sees it: its own tensors, found by their index.
    template <class Operands>
    struct place {
        const Operands& at;

        template <std::size_t Slot, class Tensor>
        [[nodiscard]] typename Operands::value_type value() const {
            static_assert(has_value(Tensor::kind),
                          "tiffin: at[tensor]: a tensor of this kind has no value of its own in a formula");
            if constexpr (is_one_number(Tensor::kind))
                return at.template one_number<Slot>();
            else
                return at.template value<Slot>();
        }
        template <class Formula, class... Values>
        [[nodiscard]] auto by_number(const Formula& f, const Values&... values) const {
            return at.apply(f, values...);
        }
    };
    template <class Operands>
    static typename Operands::value_type value(const void* source, const Operands& at) {
        using value_type = typename Operands::value_type;
        const auto& s = *static_cast<const Source*>(source);
        const place<Operands> here{at};
        if constexpr (!composite_source<Source>)
            return value_type(s(source_place<Source, 0, place<Operands>>{here}));
        else
            return [&]<std::size_t... K>(std::index_sequence<K...>) {
                return value_type(detail::join<0>(s, here, at.template value<own + K>()...));
            }
        (std::make_index_sequence<Parts>{});
    }
};

// The formula of a source. None for a sum, which is accumulated term by term, and for placeholders: the policy that
// replaces them has its own.
template <source_policy S>
constexpr auto find_formula() noexcept {
    if constexpr (detail::kind_of<S>.argument || detail::kind_of<S>.policy || detail::is_sum_of_values<S>)
        return no_formula{};
    else if constexpr (row_normed_source<S> && detail::is_policy_of_values<S>)
        return norm_of_value<std::remove_cvref_t<decltype(std::declval<const S&>().norm)>>{};
    else if constexpr (row_scaled_source<S> && detail::is_policy_of_values<S>)
        return scaled_value{};
    else if constexpr (!composite_source<S>)
        return formula_of_source<S, 0>{};
    else if constexpr (detail::is_policy_of_values<S>)
        return formula_of_values<std::remove_cvref_t<decltype(std::declval<const S&>().formula())>,
                                 part_count<S>>{};
    else if constexpr (!chained_source<S> && !row_source<S>)
        return formula_of_source<S, part_count<S>>{};
    else
        return no_formula{};
}
template <source_policy S>
using formula_of = decltype(find_formula<S>());

}  // namespace plan_detail

TIFFIN_END
