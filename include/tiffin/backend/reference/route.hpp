// What a call gives for one token, and the route that a router gives it, as it is written.
#pragma once

#include <tiffin/backend/tensor_checks.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/source/tree.hpp>
#include <tiffin/table/gathered_rows.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

TIFFIN_BEGIN

// A token as the reference sees it: its id, and what the caller gave for it.
template <class Scalar>
struct token_arguments {
    std::int32_t token_id = 0;
    const Scalar* residual = nullptr;
    const Scalar* per_layer_input = nullptr;
    choice<Scalar>* routes = nullptr;  // where the outermost router's choices go; null: nowhere
    float* carried = nullptr;          // of a delayed block: taken from and left in
    bool carried_is_due = false;
    const gathered_rows* gathered = nullptr;  // of the call, of which this is token `number`
    std::size_t number = 0;
};

namespace reference_detail {

template <class Scalar>
Scalar number(const tensor_view& t, std::size_t i) {
    return Scalar(load_as_f32(t.data, t.type, i));
}

// Number i of the token's row in a table, or of the row of expert e in a pool.
template <class Scalar>
Scalar row_number(const tensor_view& t, const token_arguments<Scalar>& token, std::size_t e, std::size_t i) {
    const std::size_t width = t.shape[t.shape.rank() - 1];
    if (t.gathered != 0)
        return Scalar(load_as_f32(token.gathered[t.gathered - 1].row(token.number), t.type, e * width + i));
    const std::size_t vocab = t.shape[t.shape.rank() - 2];
    return number<Scalar>(t, (e * vocab + static_cast<std::size_t>(token.token_id)) * width + i);
}

// The experts of a token, best first; a map's in its own order. `scratch` holds 3 experts numbers.
template <class Scalar, router_policy Router>
void route(const Router& router, std::span<const tensor_kind> kinds, std::span<const tensor_view> tensors,
           const token_arguments<Scalar>& token, const Scalar* x, std::size_t inputs, Scalar* scratch,
           choice<Scalar>* chosen) {
    if constexpr (learned_router<Router>) {
        std::size_t experts = 0;
        const Scalar* bias = nullptr;
        Scalar* next = scratch;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            if (kinds[i] == tensor_kind::logits) {
                experts = tensors[i].shape[0];
                for (std::size_t e = 0; e < experts; ++e) {
                    Scalar total(0);
                    for (std::size_t k = 0; k < inputs; ++k)
                        total = total + x[k] * number<Scalar>(tensors[i], e * inputs + k);
                    next[e] = total;
                }
                next += experts;
            }
        }
        for (std::size_t i = 0; i < tensors.size(); ++i)
            if (kinds[i] == tensor_kind::selection_bias && tensors[i].data != nullptr) {
                for (std::size_t e = 0; e < experts; ++e) next[e] = number<Scalar>(tensors[i], e);
                bias = next;
            }
        choose(router, scratch, experts, bias, scratch + 2 * experts, chosen);
    } else {
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            if (kinds[i] != tensor_kind::route_map) continue;
            const std::size_t k = detail::route_choices(router, tensors);
            for (std::size_t n = 0; n < k; ++n)
                chosen[n] = {static_cast<std::int32_t>(detail::load_integer(
                                 tensors[i], static_cast<std::size_t>(token.token_id) * k + n)),
                             Scalar(1)};
        }
    }
}

template <source_policy Source>
constexpr auto kinds_of() {
    std::array<tensor_kind, tensor_count<Source>()> kinds{};
    for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = specs_of<Source>("")[i].kind;
    return kinds;
}

// The logits, a bias and the scratch of choose() for whatever router.
inline std::size_t route_scratch(std::span<const tensor_view> tensors) noexcept {
    std::size_t most = 0;
    for (const tensor_view& t : tensors)
        if (t.data != nullptr) most = std::max(most, t.shape[0]);
    return 4 * most;
}

}  // namespace reference_detail

TIFFIN_END
