// The inputs of one token, and its route, computed literally by the router's definition.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/plan/lower.hpp>
#include <tiffin/reference/scalar_numbers.hpp>
#include <tiffin/router/row_choice.hpp>
#include <tiffin/router/selection.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

TIFFIN_BEGIN

// The inputs of one token: its id, and what the caller gave for it.
template <class Scalar>
struct token_arguments {
    std::int32_t token_id = 0;
    const Scalar* residual = nullptr;
    const Scalar* per_layer_input = nullptr;
    choice<Scalar>* routes = nullptr;  // output: the outermost router's choices; null: not recorded
    std::size_t d_model = 0;           // of the residual
    Scalar* carried = nullptr;         // of a delayed block: read, then overwritten
    bool carried_is_due = false;
    const gathered_rows* gathered = nullptr;  // of the call, of which this is token `number`
    std::size_t number = 0;
};

namespace reference_detail {

// Element i of a tensor in its given format; f64 is read as double.
template <class Scalar>
Scalar number(const void* data, dtype type, std::size_t i) {
    if (type != dtype::f64) return Scalar(load_as_f32(data, type, i));
    double wide;
    std::memcpy(&wide, static_cast<const unsigned char*>(data) + i * sizeof wide, sizeof wide);
    return Scalar(wide);
}
template <class Scalar>
Scalar number(const tensor_view& t, std::size_t i) {
    return t.scales.any() ? Scalar(load_as_f32(t, i)) : number<Scalar>(t.data, t.type, i);
}
// Element i of a gathered row.
template <class Scalar>
Scalar number(const gathered_rows& rows, std::size_t t, std::size_t i) {
    if (!rows.scales.any()) return number<Scalar>(rows.row(t), rows.type, i);
    float one;
    read_as_f32(rows.stored(t), rows.type, rows.scales, i, 1, &one);
    return Scalar(one);
}

// The sum of n values that backends add in an order of their own.
template <class Scalar>
Scalar sum_in_any_order(const Scalar* numbers, std::size_t n) {
    Scalar total(0);
    for (std::size_t i = 0; i < n; ++i) total = total + numbers[i];
    return total;
}

// Element i of the token's row in a table, or of the row of expert e in a pool.
template <class Scalar>
Scalar row_number(const tensor_view& t, const token_arguments<Scalar>& token, std::size_t e, std::size_t i) {
    const std::size_t width = t.shape[t.shape.rank() - 1];
    if (t.gathered != 0) return number<Scalar>(token.gathered[t.gathered - 1], token.number, e * width + i);
    const std::size_t vocab = t.shape[t.shape.rank() - 2];
    return number<Scalar>(t, (e * vocab + static_cast<std::size_t>(token.token_id)) * width + i);
}

// Element i of the row of choice `which` of those of a token.
template <class Scalar>
Scalar chosen_number(const tensor_view& t, const token_arguments<Scalar>& token, const choice<Scalar>* chosen,
                     std::size_t choices, std::size_t which, std::size_t i) {
    if (t.gathered != 0)
        return number<Scalar>(token.gathered[t.gathered - 1], token.number * choices + which, i);
    return number<Scalar>(t, static_cast<std::size_t>(chosen[which].expert) * t.shape[1] + i);
}

// A node of a plan with its tensors, and how many features it reads.
struct bound_source {
    const plan_node& node;
    const bound_node& bound;
    std::size_t inputs;

    [[nodiscard]] tensor_view tensor(tensor_kind kind) const {
        for (std::size_t i = 0; i < bound.tensors.size(); ++i)
            if (node.kind->tensors[i].kind == kind) return bound.tensors[i];
        return {};
    }
};

// <x, row> for one row of a matrix, k ascending.
template <class Scalar>
Scalar product(const tensor_view& matrix, std::size_t row, const Scalar* x, std::size_t n) {
    Scalar total(0);
    if (matrix.type == dtype::f64 && !matrix.scales.any()) {
        const auto* const numbers = static_cast<const std::byte*>(matrix.data) + row * n * sizeof(double);
        for (std::size_t k = 0; k < n; ++k) total = total + x[k] * number<Scalar>(numbers, dtype::f64, k);
        return total;
    }
    std::array<float, 256> numbers;
    for (std::size_t first = 0; first < n; first += numbers.size()) {
        const std::size_t count = std::min(numbers.size(), n - first);
        read_as_f32(matrix, row * n + first, count, numbers.data());
        for (std::size_t k = 0; k < count; ++k) total = total + x[first + k] * Scalar(numbers[k]);
    }
    return total;
}

// The experts or rows of a token, best first; those of a map in its own order. Written to the call's routes if it
// records them. `scratch`: route_scratch() values.
template <class Scalar>
void route(const bound_source& s, const token_arguments<Scalar>& token, const Scalar* x, Scalar* scratch,
           choice<Scalar>* chosen) {
    const auto& does = ops<scalar_numbers<Scalar>>(s.node);
    const void* const source = s.node.source;
    const std::size_t choices = s.bound.choices, id = static_cast<std::size_t>(token.token_id);
    switch (s.node.kind->router) {
        case detail::router_kind::none: return;
        case detail::router_kind::learned: {
            const tensor_view weight = s.tensor(tensor_kind::logits),
                              bias = s.tensor(tensor_kind::selection_bias);
            const std::size_t experts = weight.shape[0];
            Scalar* const added = scratch + experts;
            for (std::size_t e = 0; e < experts; ++e) {
                scratch[e] = product(weight, e, x, s.inputs);
                if (bias.data != nullptr) added[e] = number<Scalar>(bias, e);
            }
            does.choose(source, scratch, experts, bias.data != nullptr ? added : nullptr, added + experts,
                        chosen);
            break;
        }
        case detail::router_kind::map:
            for (std::size_t n = 0; n < choices; ++n)
                chosen[n] = {static_cast<std::int32_t>(
                                 detail::load_integer(s.tensor(tensor_kind::route_map), id * choices + n)),
                             Scalar(1)};
            break;
        case detail::router_kind::keys: {
            const tensor_view weight = s.tensor(tensor_kind::query), bias = s.tensor(tensor_kind::query_bias),
                              keys = s.tensor(tensor_kind::half_keys);
            const std::size_t groups = keys.shape[0], n = keys.shape[1], half = keys.shape[2];
            Scalar* const q = scratch;
            Scalar* const scores = q + groups * half;
            for (std::size_t j = 0; j < groups * half; ++j) {
                q[j] = product(weight, j, x, s.inputs);
                if (bias.data != nullptr) q[j] = q[j] + number<Scalar>(bias, j);
            }
            for (std::size_t i = 0; i < groups * n; ++i) scores[i] = product(keys, i, q + i / n * half, half);
            does.choose_rows(source, scores, groups / 2, n, scores + groups * n, chosen);
            break;
        }
        case detail::router_kind::ranges: {
            const tensor_view ranges = s.tensor(tensor_kind::row_ranges);
            take_range(static_cast<std::int32_t>(detail::load_integer(ranges, 2 * id)),
                       static_cast<std::int32_t>(detail::load_integer(ranges, 2 * id + 1)), choices, chosen);
        }
    }
    if (does.gate_rows != nullptr) {
        const std::size_t n = rows_chosen(chosen, choices);
        Scalar* const products = scratch + 3 * choices;
        const tensor_view keys = s.tensor(tensor_kind::row_keys);
        for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t k = 0; k < s.inputs; ++k)
                products[k] = x[k] * chosen_number(keys, token, chosen, choices, i, k);
            scratch[i] = sum_in_any_order(products, s.inputs);
        }
        does.gate_rows(source, scratch, n, scratch + choices, chosen);
    }
    if (s.bound.recorded && token.routes != nullptr) std::copy_n(chosen, choices, token.routes);
}

// Scratch values: the logits, a bias and the scratch of a choice; a query, its scores and choice; products of keys.
inline std::size_t route_scratch(const bound_source& s) {
    const std::size_t choices = s.bound.choices;
    std::size_t most = 3 * choices + s.inputs;
    if (const tensor_view logits = s.tensor(tensor_kind::logits); logits.data != nullptr)
        most = std::max(most, 4 * logits.shape[0]);
    if (const tensor_view keys = s.tensor(tensor_kind::half_keys); keys.data != nullptr)
        most = std::max(most, keys.shape[0] * (keys.shape[1] + keys.shape[2]) + 7 * choices);
    return most;
}

}  // namespace reference_detail

TIFFIN_END
