// A source of one token, every formula evaluated as it is written.
#pragma once

#include <tiffin/backend/binder.hpp>
#include <tiffin/backend/reference/route.hpp>
#include <tiffin/backend/tensor_checks.hpp>
#include <tiffin/source/tree.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace reference_detail {

// A source with its tensors and sizes.
template <source_policy Source>
struct bound_source {
    const Source& source;
    std::span<const tensor_view> tensors;
    std::size_t width;
    std::size_t inputs;
};

// Where each tensor's state begins among the token's: choices (two numbers each) and rank numbers of a
// router, the scale of a norm, the row of a chain.
template <source_policy Source>
struct state_layout {
    std::array<std::size_t, tensor_count<Source>() + 1> begin{};
    std::array<std::size_t, tensor_count<Source>() + 1> choices{};
    std::size_t size = 0;

    explicit state_layout(const bound_source<Source>& s) {
        visit_nodes<chains::left_out>(s.source, [&]<std::size_t First>(const auto& node) {
            using node_type = std::remove_cvref_t<decltype(node)>;
            constexpr std::size_t count = own_tensors_of<node_type>::size;
            std::size_t need = 0;
            if constexpr (routed_source<node_type>) {
                const std::size_t k = detail::route_choices(node.router, s.tensors.subspan(First, count));
                need = 2 * k;
                for (std::size_t i = First; i < First + count; ++i) choices[i] = k;
                for (std::size_t i = First; i < First + count; ++i)
                    if (specs_of<Source>("")[i].kind == tensor_kind::low_rank_in)
                        need += k * s.tensors[i].shape[1];
            } else if constexpr (row_normed_source<node_type>) {
                need = 1;
            } else if constexpr (chained_source<node_type>) {
                need = s.width;
            }
            for (std::size_t i = First; i < First + count; ++i) begin[i] = size;
            size += need;
        });
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
        const tensor_view& t = of.tensors[Slot];
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
        } else if constexpr (kind == tensor_kind::row_width) {
            total = Scalar(static_cast<float>(of.width));
        } else {
            const auto* const chosen = reinterpret_cast<const choice<Scalar>*>(own);
            for (std::size_t i = 0; i < layout.choices[Slot]; ++i) {
                const auto e = static_cast<std::size_t>(chosen[i].expert);
                Scalar one(0);
                if constexpr (kind == tensor_kind::pool) {
                    one = row_number(t, token, e, feature);
                } else {
                    const std::size_t rank = t.shape[2];
                    const Scalar* const z = own + 2 * layout.choices[Slot] + i * rank;
                    for (std::size_t r = 0; r < rank; ++r)
                        one = one + z[r] * number<Scalar>(t, (e * of.width + feature) * rank + r);
                }
                total = total + chosen[i].weight * one;
            }
        }
        return total;
    }
};

template <source_policy Source>
std::size_t scratch_numbers(const bound_source<Source>& s);

// Calls visit(part, its input's width, its own width) for the parts of a chain.
template <class Node, class Visit>
void for_chain(const Node& chain, std::span<const tensor_view> tensors, std::size_t inputs, std::size_t width,
               const Visit& visit) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        std::size_t in = inputs;
        const auto one = [&]<std::size_t P>(std::integral_constant<std::size_t, P>) {
            using part = part_of<Node, P>;
            const auto own = tensors.subspan(part_offset<Node, P>(), tensor_count<part>());
            std::size_t out = width;
            if constexpr (P + 1 < sizeof...(I)) out = part_width<Node, P>(tensors);
            visit(bound_source<part>{std::get<P>(chain.parts()), own, out, in});
            in = out;
        };
        (one(std::integral_constant<std::size_t, I>{}), ...);
    }
    (part_indices<Node>{});
}

// out[j] = source at feature j. `scratch` holds scratch_numbers(s).
template <class Scalar, source_policy Source>
void evaluate_row(const bound_source<Source>& s, const token_arguments<Scalar>& token, const Scalar* x,
                  Scalar* out, Scalar* scratch, choice<Scalar>* routes) {
    const state_layout<Source> layout(s);
    Scalar* const state = scratch;
    Scalar* const rest = scratch + layout.size;
    visit_nodes<chains::left_out>(s.source, [&]<std::size_t First>(const auto& node) {
        using node_type = std::remove_cvref_t<decltype(node)>;
        constexpr std::size_t count = own_tensors_of<node_type>::size;
        Scalar* const own = state + layout.begin[First];
        if constexpr (routed_source<node_type>) {
            static constexpr auto kinds = kinds_of<node_type>();
            auto* const chosen = reinterpret_cast<choice<Scalar>*>(own);
            const auto tensors = s.tensors.subspan(First, count);
            route(node.router, std::span<const tensor_kind>(kinds), tensors, token, x, s.inputs, rest,
                  chosen);
            const std::size_t k = layout.choices[First];
            if (routes != nullptr) std::copy_n(chosen, k, std::exchange(routes, nullptr));
            for (std::size_t n = 0; n < count; ++n) {
                if (kinds[n] != tensor_kind::low_rank_in) continue;
                const std::size_t rank = tensors[n].shape[1];
                for (std::size_t i = 0; i < k * rank; ++i) {
                    Scalar total(0);
                    const std::size_t row =
                        static_cast<std::size_t>(chosen[i / rank].expert) * rank + i % rank;
                    for (std::size_t c = 0; c < s.inputs; ++c)
                        total = total + x[c] * number<Scalar>(tensors[n], row * s.inputs + c);
                    own[2 * k + i] = total;
                }
            }
        } else if constexpr (row_normed_source<node_type>) {
            Scalar squares(0);
            for (std::size_t j = 0; j < s.width; ++j) {
                const Scalar v = evaluate<First + part_offset<node_type, 0>()>(
                    std::get<0>(node.parts()), place<Scalar, Source>{s, layout, token, x, state, j});
                squares = squares + v * v;
            }
            own[0] = node.norm.scale(squares, Scalar(static_cast<float>(s.width)));
        } else if constexpr (chained_source<node_type>) {
            const Scalar* in = x;
            Scalar* next = rest;
            for_chain(node, s.tensors.subspan(First, tensor_count<node_type>()), s.inputs, s.width,
                      [&](const auto& part) {
                          Scalar* const to = next;
                          next += part.width;
                          const bool routes_here = bound_choices(part.source, part.tensors) > 0;
                          evaluate_row(part, token, in, to, next,
                                       routes_here ? std::exchange(routes, nullptr) : nullptr);
                          in = to;
                      });
            std::copy_n(in, s.width, own);
        }
    });
    for (std::size_t j = 0; j < s.width; ++j)
        out[j] = evaluate(s.source, place<Scalar, Source>{s, layout, token, x, state, j});
}

template <source_policy Source>
std::size_t scratch_numbers(const bound_source<Source>& s) {
    std::size_t most = 0;
    visit_nodes<chains::left_out>(s.source, [&]<std::size_t First>(const auto& node) {
        using node_type = std::remove_cvref_t<decltype(node)>;
        if constexpr (routed_source<node_type>) {
            most = std::max(most, route_scratch(s.tensors.subspan(First, own_tensors_of<node_type>::size)));
        } else if constexpr (chained_source<node_type>) {
            std::size_t rows = 0, deepest = 0;
            for_chain(node, s.tensors.subspan(First, tensor_count<node_type>()), s.inputs, s.width,
                      [&](const auto& part) {
                          rows += part.width;
                          deepest = std::max(deepest, scratch_numbers(part));
                      });
            most = std::max(most, rows + deepest);
        }
    });
    return state_layout<Source>(s).size + most;
}

}  // namespace reference_detail

TIFFIN_END
