// The gate on the weights of a token's chosen rows, from the products of their keys with x, forward and backward.
#pragma once

#include <tiffin/router/row_choice.hpp>
#include <tiffin/train/trained_router.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace train_detail {

// Memory: `weights`, `products` (tokens, choices) of routed_tokens.
template <class M>
class trained_row_gate {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    using ops_type = typename training_numbers<M>::ops;
    using dual = typename ops_type::dual;

    trained_row_gate(const plan_node& node, const parameter<number>* keys, std::size_t choices,
                     std::size_t inputs)
        : ops_(ops<training_numbers<M>>(node)),
          source_(node.source),
          is_keyed_(node.kind->router == detail::router_kind::keys),
          keys_(keys),
          choices_(choices),
          inputs_(inputs) {}

    // Gates the weights of token t, whose rows are chosen; room: 2 choices.
    void forward(const number* x, const routed_tokens<number>& at, std::size_t t, dual* room) const {
        choice<number>* const chosen = at.chosen + t * choices_;
        number* const products = at.products + t * choices_;
        const std::size_t n = rows_chosen(chosen, choices_);
        for (std::size_t i = 0; i < n; ++i) {
            at.weights[t * choices_ + i] = chosen[i].weight;
            products[i] = dot<M>(x + t * inputs_, key_of(chosen[i]), inputs_);
        }
        ops_.gate_rows(source_, products, n, reinterpret_cast<wide_number<number>*>(room), chosen);
    }
    // (choices): d_weights of gated weights, d_before of those before, d_products of key products; room: 2 choices.
    void backward(const routed_tokens<number>& at, std::size_t t, const number* d_weights, number* d_before,
                  number* d_products, dual* room) const {
        const std::size_t n = rows_chosen(at.chosen + t * choices_, choices_);
        // Without a keyed router the weights before the gate are the constant 1, which needs no gradient.
        ops_.gate_rows_back(source_, at.products + t * choices_, at.weights + t * choices_, n, d_weights,
                            room, d_products, is_keyed_ ? d_before : nullptr);
    }
    // Backward of all key products: to the keys and to x.
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

    const ops_type& ops_;
    const void* source_;
    bool is_keyed_;
    const parameter<number>* keys_;
    std::size_t choices_;
    std::size_t inputs_;
};

}  // namespace train_detail

TIFFIN_END
