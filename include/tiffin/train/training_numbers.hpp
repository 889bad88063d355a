// The number type of training on a machine, and the training operations of a policy, compiled for it.
#pragma once

#include <tiffin/plan/ops_of.hpp>
#include <tiffin/train/formula_partials.hpp>
#include <tiffin/train/partials.hpp>
#include <tiffin/train/route_partials.hpp>
#include <tiffin/train/training_op.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

TIFFIN_BEGIN

// The number type of training on machine M: SIMD registers or a plain number (see exact_machine.hpp).
template <class M>
struct training_numbers {
    using number = typename M::number;
    using wide = train_detail::wide_number<number>;
    using ops = train_detail::training_ops<number, wide>;
    using scalar_call_type = typename ops::dual;

    // Sets the training operations of source S; see ops_of.
    template <class S, class Formula>
    static constexpr void complete(ops& of) noexcept {
        static_assert(std::none_of(own_kinds<S>.begin(), own_kinds<S>.end(),
                                   [](tensor_kind kind) {
                                       return plan_detail::read_as(kind) == plan_detail::operand_is::unknown;
                                   }),
                      "tiffin: prepare_training: a source has a tensor of a kind that cannot be trained; "
                      "plan/formula.hpp "
                      "says how each is read, formula_terms.hpp what becomes of its gradient");
        static_assert(
            detail::role_of<S>() != detail::node_role::row,
            "tiffin: prepare_training: a source whose rows a backend computes by an engine of its own "
            "has no gradient: train/training_rows.hpp knows mixtures, residuals, delays and repeated parts");
        if constexpr (!std::is_same_v<Formula, plan_detail::no_formula>) {
            of.value = &train_detail::value_of<M, Formula>;
            of.back = &train_detail::gradients_of<M, Formula>;
        }
        if constexpr (row_scaled_source<S>)
            of.slope = [](const void* source, const number& sum, const number& width) {
                using by_sum = partials<number, 1>;
                return by_sum(scale_of_row(*static_cast<const S*>(source), by_sum::variable(sum, 0),
                                           by_sum(width)))
                    .by[0];
            };
        if constexpr (routing_source<S>) complete_router<S, detail::router_of<S>>(of);
    }

private:
    using dual = typename ops::dual;

    template <class S, class Router>
    static constexpr void complete_router(ops& of) noexcept {
        using train_detail::each_partial;
        if constexpr (learned_router<Router>)
            of.choose_back = [](const void* source, const number* logits, std::size_t experts,
                                const choice<number>* chosen, std::size_t choices, const number* d_weights,
                                dual* scores, number* d_logits) {
                const auto& router = static_cast<const S*>(source)->router;
                dual* const chosen_logits = scores + experts;
                dual* const weights = chosen_logits + choices;
                const auto evaluate = [&](const auto& variable) {
                    for (std::size_t e = 0; e < experts; ++e) scores[e] = variable(e, logits[e]);
                    router.score(scores, experts);
                    for (std::size_t i = 0; i < choices; ++i) {
                        const auto e = static_cast<std::size_t>(chosen[i].expert);
                        weights[i] = scores[e];
                        chosen_logits[i] = variable(e, logits[e]);
                    }
                    router.weigh(chosen_logits, weights, choices);
                    return weights;
                };
                each_partial(experts, choices, d_weights, evaluate,
                             [&](std::size_t e, const number& d) { d_logits[e] = d; });
            };
        if constexpr (key_router<Router>)
            of.choose_rows_back = [](const void* source, const number* sums, std::size_t choices,
                                     const number* d_weights, dual* room, number* d_sums) {
                const auto evaluate = [&](const auto& variable) {
                    for (std::size_t i = 0; i < choices; ++i) room[i] = variable(i, sums[i]);
                    static_cast<const S*>(source)->router.weigh(room, choices);
                    return room;
                };
                each_partial(choices, choices, d_weights, evaluate,
                             [&](std::size_t i, const number& d) { d_sums[i] = d; });
            };
        if constexpr (gating_router<Router>) complete_gate<S>(of);
    }
    template <class S>
    static constexpr void complete_gate(ops& of) noexcept {
        // Forward also computes with partials: an activation named in a composition text is compiled for them alone.
        // The scratch holds 2 n of them.
        of.gate_rows = [](const void* source, const number* products, std::size_t n, wide* scratch,
                          choice<number>* chosen) {
            auto* const room = reinterpret_cast<dual*>(scratch);
            for (std::size_t i = 0; i < n; ++i) {
                room[i] = dual(wide(products[i]));
                room[n + i] = dual(wide(chosen[i].weight));
            }
            static_cast<const S*>(source)->router.gate(room, room + n, n);
            for (std::size_t i = 0; i < n; ++i) chosen[i].weight = static_cast<number>(room[n + i].value);
        };
        of.gate_rows_back = [](const void* source, const number* products, const number* weights,
                               std::size_t n, const number* d_weights, dual* room, number* d_products,
                               number* d_before) {
            const auto evaluate = [&](const auto& variable) {
                for (std::size_t i = 0; i < n; ++i) {
                    room[i] = variable(i, products[i]);
                    room[n + i] = variable(n + i, weights[i]);
                }
                static_cast<const S*>(source)->router.gate(room, room + n, n);
                return room + n;
            };
            train_detail::each_partial(
                d_before != nullptr ? 2 * n : n, n, d_weights, evaluate,
                [&](std::size_t i, const number& d) { (i < n ? d_products[i] : d_before[i - n]) = d; });
        };
    }
};

TIFFIN_END
