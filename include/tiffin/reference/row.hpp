// A source of one token, every formula evaluated as it is written.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/grammar/tree.hpp>
#include <tiffin/reference/route.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace reference_detail {

// A source with its tensors, and how many features it reads.
template <source_policy Source>
struct bound_source {
    const Source& source;
    const bound_node& bound;
    std::size_t inputs;

    template <std::size_t I>
    [[nodiscard]] auto part() const {
        const std::size_t reads = chained_source<Source> && I > 0 ? bound.parts[I - (I > 0)].width : inputs;
        return bound_source<part_of<Source, I>>{std::get<I>(source.parts()), bound.parts[I], reads};
    }
};

// Where each slot's state begins among the token's: choices (two numbers each) and rank numbers of a router,
// the scale of a norm, the row of a source whose parts are computed apart. And whose tensor it is.
template <source_policy Source>
struct state_layout {
    std::array<std::size_t, slot_count<Source>() + 1> begin{};
    std::array<std::size_t, slot_count<Source>() + 1> choices{};
    std::array<const tensor_view*, slot_count<Source>() + 1> tensors{};
    std::size_t size = 0;

    explicit state_layout(const bound_source<Source>& s) {
        visit_nodes(
            s.source,
            [&]<std::size_t First>(const auto& node, const bound_node& bound) {
                using node_type = std::remove_cvref_t<decltype(node)>;
                constexpr auto& kinds = own_kinds<node_type>;
                std::size_t need = row_scaled_source<node_type> ? 1 : 0;
                if constexpr (routed_source<node_type>) need = 2 * bound.choices;
                for (std::size_t i = 0; i < kinds.size(); ++i) {
                    tensors[First + i] = &bound.tensors[i];
                    begin[First + i] = size;
                    if constexpr (routed_source<node_type>) choices[First + i] = bound.choices;
                    if (kinds[i] == tensor_kind::low_rank_in)
                        need += bound.choices * bound.tensors[i].shape[1];
                    if (kinds[i] == tensor_kind::computed && composite_source<node_type>) {
                        begin[First + i] = size + need;
                        if constexpr (composite_source<node_type>)
                            if (parts_apart<node_type>()) need += bound.width;
                    }
                }
                size += need;
            },
            s.bound);
    }
};

// The place (token, feature) of a source.
template <class Scalar, source_policy Source>
struct place {
    const bound_source<Source>& of;
    const state_layout<Source>& layout;
    const token_arguments<Scalar>& token;
    const Scalar* x;
    const Scalar* state;
    std::size_t feature;

    template <std::size_t Slot, class Tensor>
    [[nodiscard]] Scalar value() const {
        constexpr tensor_kind kind = Tensor::kind;
        const tensor_view& t = *layout.tensors[Slot];
        const std::size_t width = of.bound.width;
        const Scalar* const own = state + layout.begin[Slot];
        Scalar total(0);
        if constexpr (kind == tensor_kind::projection) {
            for (std::size_t k = 0; k < of.inputs; ++k)
                total = total + x[k] * number<Scalar>(t, feature * of.inputs + k);
        } else if constexpr (kind == tensor_kind::table) {
            total = row_number(t, token, 0, feature);
        } else if constexpr (kind == tensor_kind::vector) {
            if (t.data) total = number<Scalar>(t, feature);
        } else if constexpr (kind == tensor_kind::scalar) {
            total = number<Scalar>(t, 0);
        } else if constexpr (kind == tensor_kind::row_scale) {
            total = own[0];
        } else if constexpr (kind == tensor_kind::computed) {
            total = own[feature];
        } else if constexpr (kind == tensor_kind::given) {
            total = token.per_layer_input[feature];
        } else if constexpr (kind == tensor_kind::residual_row) {
            total = token.residual[feature];
        } else if constexpr (kind == tensor_kind::input_row) {
            total = x[feature];
        } else if constexpr (kind == tensor_kind::row_width) {
            total = Scalar(static_cast<float>(width));
        } else {
            static_assert(kind == tensor_kind::pool || kind == tensor_kind::chosen_rows ||
                              kind == tensor_kind::low_rank_out,
                          "tiffin: at[tensor]: a tensor of this kind has no value of its own in a formula");
            const auto* const chosen = reinterpret_cast<const choice<Scalar>*>(own);
            for (std::size_t i = 0; i < layout.choices[Slot]; ++i) {
                if (chosen[i].expert < 0) break;  // a token with fewer rows
                const auto e = static_cast<std::size_t>(chosen[i].expert);
                Scalar one(0);
                if constexpr (kind == tensor_kind::pool) {
                    one = row_number(t, token, e, feature);
                } else if constexpr (kind == tensor_kind::chosen_rows) {
                    one = chosen_number(t, token, chosen, layout.choices[Slot], i, feature);
                } else {
                    const std::size_t rank = t.shape[2];
                    const Scalar* const z = own + 2 * layout.choices[Slot] + i * rank;
                    for (std::size_t r = 0; r < rank; ++r)
                        one = one + z[r] * number<Scalar>(t, (e * width + feature) * rank + r);
                }
                total = total + chosen[i].weight * one;
            }
        }
        return total;
    }
};

template <source_policy Source>
std::size_t scratch_numbers(const bound_source<Source>& s);

// A source whose rows are not a formula: see row_sources.hpp.
template <class Scalar, source_policy Source>
void evaluate_row_source(const bound_source<Source>& s, const token_arguments<Scalar>& token, const Scalar* x,
                         Scalar* out, Scalar* scratch);
template <source_policy Source>
std::size_t row_source_scratch(const bound_source<Source>& s);

// out[j] = source at feature j. `scratch` holds scratch_numbers(s).
template <class Scalar, source_policy Source>
void evaluate_row(const bound_source<Source>& s, const token_arguments<Scalar>& token, const Scalar* x,
                  Scalar* out, Scalar* scratch);

// The parts of a chain, each reading the row of the one before it.
template <std::size_t I = 0, class Scalar, source_policy Chain>
void evaluate_chain(const bound_source<Chain>& s, const token_arguments<Scalar>& token, const Scalar* x,
                    Scalar* out, Scalar* scratch) {
    const auto part = s.template part<I>();
    if constexpr (I + 1 == part_count<Chain>) {
        evaluate_row(part, token, x, out, scratch);
    } else {
        evaluate_row(part, token, x, scratch, scratch + part.bound.width);
        evaluate_chain<I + 1>(s, token, scratch, out, scratch + part.bound.width);
    }
}
template <std::size_t I = 0, source_policy Chain>
std::size_t chain_scratch(const bound_source<Chain>& s) {
    const auto part = s.template part<I>();
    if constexpr (I + 1 == part_count<Chain>)
        return scratch_numbers(part);
    else
        return part.bound.width + std::max(scratch_numbers(part), chain_scratch<I + 1>(s));
}

template <class Scalar, source_policy Source>
void evaluate_row(const bound_source<Source>& s, const token_arguments<Scalar>& token, const Scalar* x,
                  Scalar* out, Scalar* scratch) {
    const state_layout<Source> layout(s);
    Scalar* const state = scratch;
    Scalar* const rest = scratch + layout.size;
    const auto at = [&](std::size_t j) { return place<Scalar, Source>{s, layout, token, x, state, j}; };
    visit_nodes(
        s.source,
        [&]<std::size_t First>(const auto& node, const bound_node& bound) {
            using node_type = std::remove_cvref_t<decltype(node)>;
            const bound_source<node_type> here{node, bound, s.inputs};
            [[maybe_unused]] Scalar* const own = state + layout.begin[First];
            if constexpr (routed_source<node_type>) {
                route_leaf(node, bound, token, x, s.inputs, rest, own);
            } else if constexpr (row_scaled_source<node_type>) {
                if constexpr (parts_apart<node_type>())
                    evaluate_row(
                        here.template part<0>(), token, x,
                        state +
                            layout.begin[First + own_tensors_of<node_type>::template index_of<computed>()],
                        rest);
                Scalar* const products = rest;
                for (std::size_t j = 0; j < bound.width; ++j) {
                    const auto factors = factors_of_row<First>(node, at(j));
                    products[j] = factors.left * factors.right;
                }
                own[0] = scale_of_row(node, sum_in_any_order(products, bound.width),
                                      Scalar(static_cast<float>(bound.width)));
            } else if constexpr (chained_source<node_type>) {
                evaluate_chain(here, token, x, own, rest);
            } else if constexpr (row_source<node_type>) {
                evaluate_row_source(here, token, x, own, rest);
            }
        },
        s.bound);
    for (std::size_t j = 0; j < s.bound.width; ++j) out[j] = evaluate(s.source, at(j));
}

template <source_policy Source>
std::size_t scratch_numbers(const bound_source<Source>& s) {
    std::size_t most = 0;
    visit_nodes(
        s.source,
        [&]<std::size_t First>(const auto& node, const bound_node& bound) {
            using node_type = std::remove_cvref_t<decltype(node)>;
            const bound_source<node_type> here{node, bound, s.inputs};
            if constexpr (routed_source<node_type>) {
                most = std::max(
                    most, route_scratch<detail::router_of<node_type>>(own_kinds<node_type>, bound, s.inputs));
            } else if constexpr (chained_source<node_type>) {
                most = std::max(most, chain_scratch(here));
            } else if constexpr (row_source<node_type>) {
                most = std::max(most, row_source_scratch(here));
            } else if constexpr (row_scaled_source<node_type>) {
                most = std::max(most, bound.width);
                if constexpr (parts_apart<node_type>())
                    most = std::max(most, scratch_numbers(here.template part<0>()));
            }
        },
        s.bound);
    return state_layout<Source>(s).size + most;
}

}  // namespace reference_detail

TIFFIN_END
