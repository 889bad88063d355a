// The weights of a token's rows by the products of their keys with what is read, forward and back.
#pragma once

#include <tiffin/router/row_choice.hpp>
#include <tiffin/train/partials.hpp>
#include <tiffin/train/trained_router.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

TIFFIN_BEGIN

namespace train_detail {

// Routes and their derivatives do not depend on the precision of f32.
template <class Number>
using wide_number = std::conditional_t<std::is_floating_point_v<Number>, double, Number>;
// So many partials are carried in one evaluation.
template <class Number>
using route_partials = partials<wide_number<Number>, 8>;

// Calls visit(i, sum_j d[j] dout[j] / dv_i) for variables i in [0, n). evaluate(variable) yields `outputs` numbers with
// partials, where variable(i, v) stands for variable i, whose value is v.
template <class Number, class Evaluate, class Visit>
void each_partial(std::size_t n, std::size_t outputs, const Number* d, const Evaluate& evaluate,
                  const Visit& visit) {
    using wide = wide_number<Number>;
    using dual = route_partials<Number>;
    constexpr std::size_t at_once = 8;
    for (std::size_t from = 0; from < n; from += at_once) {
        const dual* const out = evaluate([&](std::size_t i, const Number& v) {
            return i >= from && i < from + at_once ? dual::variable(wide(v), i - from) : dual(wide(v));
        });
        for (std::size_t i = from; i < std::min(n, from + at_once); ++i) {
            wide total(0);
            for (std::size_t j = 0; j < outputs; ++j) total = total + wide(d[j]) * out[j].by[i - from];
            visit(i, static_cast<Number>(total));
        }
    }
}

// Memory: `weights`, `products` (tokens, choices) of routed_tokens.
template <class M, gating_router Router>
class trained_row_gate {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    using dual = route_partials<number>;

    trained_row_gate(const Router& router, const parameter<number>* keys, std::size_t choices,
                     std::size_t inputs)
        : router_(router), keys_(keys), choices_(choices), inputs_(inputs) {}

    // Of token t, whose rows are chosen; room: 2 choices.
    void forward(const number* x, const routed_tokens<number>& at, std::size_t t,
                 wide_number<number>* room) const {
        choice<number>* const chosen = at.chosen + t * choices_;
        number* const products = at.products + t * choices_;
        const std::size_t n = rows_chosen(chosen, choices_);
        for (std::size_t i = 0; i < n; ++i) {
            at.weights[t * choices_ + i] = chosen[i].weight;
            products[i] = dot<M>(x + t * inputs_, key_of(chosen[i]), inputs_);
        }
        gate_rows(router_, products, n, room, chosen);
    }
    // d_weights (choices): of the gated weights; d_before, d_products (choices) likewise; room: 2 choices.
    void backward(const routed_tokens<number>& at, std::size_t t, const number* d_weights, number* d_before,
                  number* d_products, dual* room) const {
        const std::size_t n = rows_chosen(at.chosen + t * choices_, choices_);
        const number* const weights = at.weights + t * choices_;
        const number* const products = at.products + t * choices_;
        const auto evaluate = [&](const auto& variable) {
            for (std::size_t i = 0; i < n; ++i) {
                room[i] = variable(i, products[i]);
                room[n + i] = variable(n + i, weights[i]);
            }
            router_.gate(room, room + n, n);
            return room + n;
        };
        // Weights that are 1 whatever is read have no use for a gradient.
        each_partial(key_router<Router> ? 2 * n : n, n, d_weights, evaluate,
                     [&](std::size_t i, const number& v) { (i < n ? d_products[i] : d_before[i - n]) = v; });
    }
    // From the gradients of all products to the keys and to x.
    void add_products(const call_type& call, const number* x, const routed_tokens<number>& at,
                      const number* d_products, number* dx) const {
        number* const gradient = keys_->gradient;
        call.each_columns(inputs_, [&](std::size_t first, std::size_t last) {
            for (std::size_t p = 0; p < call.tokens * choices_; ++p) {
                const choice<number>& one = at.chosen[p];
                if (one.expert < 0) continue;
                const std::size_t token = p / choices_ * inputs_;
                number* const to = gradient ? gradient + (key_of(one) - keys_->values()) : nullptr;
                for (std::size_t j = first; j < last; ++j) {
                    if (to) to[j] = to[j] + d_products[p] * x[token + j];
                    if (dx) dx[token + j] = dx[token + j] + d_products[p] * key_of(one)[j];
                }
            }
        });
    }

private:
    [[nodiscard]] const number* key_of(const choice<number>& one) const noexcept {
        return keys_->values() + static_cast<std::size_t>(one.expert) * inputs_;
    }

    Router router_;
    const parameter<number>* keys_;
    std::size_t choices_;
    std::size_t inputs_;
};

// Of a router whose weights are no business of the rows.
struct no_row_gate {
    no_row_gate(const auto&...) noexcept {}
};
template <class M, class Router>
struct row_gate_of {
    using type = no_row_gate;
};
template <class M, gating_router Router>
struct row_gate_of<M, Router> {
    using type = trained_row_gate<M, Router>;
};

}  // namespace train_detail

TIFFIN_END
