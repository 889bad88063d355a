// What a call gives for one token, and the route that a router gives it, as it is written.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/grammar/slots.hpp>
#include <tiffin/grammar/tree.hpp>
#include <tiffin/router/row_choice.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/table/gathered_rows.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

TIFFIN_BEGIN

// A token as the reference sees it: its id, and what the caller gave for it.
template <class Scalar>
struct token_arguments {
    std::int32_t token_id = 0;
    const Scalar* residual = nullptr;
    const Scalar* per_layer_input = nullptr;
    choice<Scalar>* routes = nullptr;  // where the outermost router's choices go; null: nowhere
    std::size_t d_model = 0;           // of the residual
    Scalar* carried = nullptr;         // of a delayed block: taken from and left in
    bool carried_is_due = false;
    const gathered_rows* gathered = nullptr;  // of the call, of which this is token `number`
    std::size_t number = 0;
};

namespace reference_detail {

// Number i of a tensor's memory, as it is given: in double too.
template <class Scalar>
Scalar number(const void* data, dtype type, std::size_t i) {
    if (type != dtype::f64) return Scalar(load_as_f32(data, type, i));
    double wide;
    std::memcpy(&wide, static_cast<const unsigned char*>(data) + i * sizeof wide, sizeof wide);
    return Scalar(wide);
}
template <class Scalar>
Scalar number(const tensor_view& t, std::size_t i) {
    return number<Scalar>(t.data, t.type, i);
}

// The sum of n numbers, added up by backends in an order of their own.
template <class Scalar>
Scalar sum_in_any_order(const Scalar* numbers, std::size_t n) {
    Scalar total(0);
    for (std::size_t i = 0; i < n; ++i) total = total + numbers[i];
    return total;
}

// Number i of the token's row in a table, or of the row of expert e in a pool.
template <class Scalar>
Scalar row_number(const tensor_view& t, const token_arguments<Scalar>& token, std::size_t e, std::size_t i) {
    const std::size_t width = t.shape[t.shape.rank() - 1];
    if (t.gathered != 0)
        return number<Scalar>(token.gathered[t.gathered - 1].row(token.number), t.type, e * width + i);
    const std::size_t vocab = t.shape[t.shape.rank() - 2];
    return number<Scalar>(t, (e * vocab + static_cast<std::size_t>(token.token_id)) * width + i);
}

// Number i of the row of choice `which` of those that a token made.
template <class Scalar>
Scalar chosen_number(const tensor_view& t, const token_arguments<Scalar>& token, const choice<Scalar>* chosen,
                     std::size_t choices, std::size_t which, std::size_t i) {
    if (t.gathered != 0)
        return number<Scalar>(token.gathered[t.gathered - 1].row(token.number * choices + which), t.type, i);
    return number<Scalar>(t, static_cast<std::size_t>(chosen[which].expert) * t.shape[1] + i);
}

// The rows of a token: by the keys' products with its query, or by its id; then their weights by their own keys.
// `scratch`: row_scratch() numbers.
template <class Scalar, row_router Router>
void route_rows(const Router& router, const auto& given, const bound_node& bound,
                const token_arguments<Scalar>& token, const Scalar* x, std::size_t inputs, Scalar* scratch,
                choice<Scalar>* chosen) {
    if constexpr (key_router<Router>) {
        const tensor_view weight = given(tensor_kind::query), bias = given(tensor_kind::query_bias),
                          keys = given(tensor_kind::half_keys);
        const std::size_t groups = keys.shape[0], n = keys.shape[1], half = keys.shape[2];
        Scalar* const q = scratch;
        Scalar* const scores = q + groups * half;
        for (std::size_t j = 0; j < groups * half; ++j) {
            Scalar total(0);
            for (std::size_t k = 0; k < inputs; ++k)
                total = total + x[k] * number<Scalar>(weight, j * inputs + k);
            q[j] = bias.data != nullptr ? total + number<Scalar>(bias, j) : total;
        }
        for (std::size_t i = 0; i < groups * n; ++i) {
            Scalar total(0);
            for (std::size_t k = 0; k < half; ++k)
                total = total + q[i / n * half + k] * number<Scalar>(keys, i * half + k);
            scores[i] = total;
        }
        Scalar* const weights = scores + groups * n;
        auto* const best = reinterpret_cast<ranked<Scalar>*>(weights + bound.choices);
        choose_rows(router, scores, groups / 2, n, best, weights, chosen);
    } else {
        const tensor_view ranges = given(tensor_kind::row_ranges);
        const std::size_t id = static_cast<std::size_t>(token.token_id);
        take_range(static_cast<std::int32_t>(detail::load_integer(ranges, 2 * id)),
                   static_cast<std::int32_t>(detail::load_integer(ranges, 2 * id + 1)), bound.choices,
                   chosen);
    }
    if constexpr (gating_router<Router>) {
        const std::size_t n = rows_chosen(chosen, bound.choices);
        Scalar* const products = scratch + 3 * bound.choices;
        const tensor_view keys = given(tensor_kind::row_keys);
        for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t k = 0; k < inputs; ++k)
                products[k] = x[k] * chosen_number(keys, token, chosen, bound.choices, i, k);
            scratch[i] = sum_in_any_order(products, inputs);
        }
        gate_rows(router, scratch, n, scratch + bound.choices, chosen);
    }
}
// Of any router of rows.
inline std::size_t row_scratch(std::span<const tensor_kind> kinds, const bound_node& bound,
                               std::size_t inputs) {
    std::size_t keyed = 0;
    for (std::size_t i = 0; i < kinds.size(); ++i)
        if (kinds[i] == tensor_kind::half_keys) {
            const shape& keys = bound.tensors[i].shape;
            keyed = keys[0] * (keys[1] + keys[2]) + 7 * bound.choices;
        }
    return std::max(keyed, 3 * bound.choices + inputs);
}

// The experts of a token, best first; a map's in its own order. Recorded where the call wants them.
// `scratch` holds 4 experts numbers.
template <class Scalar, router_policy Router>
void route(const Router& router, std::span<const tensor_kind> kinds, const bound_node& bound,
           const token_arguments<Scalar>& token, const Scalar* x, std::size_t inputs, Scalar* scratch,
           choice<Scalar>* chosen) {
    const auto given = [&](tensor_kind kind) {
        for (std::size_t i = 0; i < kinds.size(); ++i)
            if (kinds[i] == kind) return bound.tensors[i];
        return tensor_view{};
    };
    if constexpr (learned_router<Router>) {
        const tensor_view weight = given(tensor_kind::logits), bias = given(tensor_kind::selection_bias);
        const std::size_t experts = weight.shape[0];
        Scalar* const added = scratch + experts;
        for (std::size_t e = 0; e < experts; ++e) {
            Scalar total(0);
            for (std::size_t k = 0; k < inputs; ++k)
                total = total + x[k] * number<Scalar>(weight, e * inputs + k);
            scratch[e] = total;
            if (bias.data != nullptr) added[e] = number<Scalar>(bias, e);
        }
        choose(router, scratch, experts, bias.data != nullptr ? added : nullptr, scratch + 2 * experts,
               chosen);
    } else if constexpr (row_router<Router>) {
        route_rows(router, given, bound, token, x, inputs, scratch, chosen);
    } else {
        const tensor_view map = given(tensor_kind::route_map);
        for (std::size_t n = 0; n < bound.choices; ++n)
            chosen[n] = {static_cast<std::int32_t>(detail::load_integer(
                             map, static_cast<std::size_t>(token.token_id) * bound.choices + n)),
                         Scalar(1)};
    }
    if (bound.recorded && token.routes != nullptr) std::copy_n(chosen, bound.choices, token.routes);
}

// A leaf's route, and the rank numbers of its choices behind it.
template <class Scalar, routed_source Leaf>
void route_leaf(const Leaf& leaf, const bound_node& bound, const token_arguments<Scalar>& token,
                const Scalar* x, std::size_t inputs, Scalar* scratch, Scalar* own) {
    auto* const chosen = reinterpret_cast<choice<Scalar>*>(own);
    route(leaf.router, own_kinds<Leaf>, bound, token, x, inputs, scratch, chosen);
    for (std::size_t n = 0; n < bound.tensors.size(); ++n) {
        if (own_kinds<Leaf>[n] != tensor_kind::low_rank_in) continue;
        const std::size_t rank = bound.tensors[n].shape[1];
        for (std::size_t i = 0; i < bound.choices * rank; ++i) {
            Scalar total(0);
            const std::size_t row = static_cast<std::size_t>(chosen[i / rank].expert) * rank + i % rank;
            for (std::size_t c = 0; c < inputs; ++c)
                total = total + x[c] * number<Scalar>(bound.tensors[n], row * inputs + c);
            own[2 * bound.choices + i] = total;
        }
    }
}

// The logits, a bias and the scratch of choose() for whatever router.
template <router_policy Router>
std::size_t route_scratch(std::span<const tensor_kind> kinds, const bound_node& bound,
                          std::size_t inputs) noexcept {
    if constexpr (row_router<Router>) return row_scratch(kinds, bound, inputs);
    const std::span<const tensor_view> tensors = bound.tensors;
    std::size_t most = 0;
    for (const tensor_view& t : tensors)
        if (t.data != nullptr) most = std::max(most, t.shape[0]);
    return 4 * most;
}

}  // namespace reference_detail

TIFFIN_END
