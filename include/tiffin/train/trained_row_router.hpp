// A row router, forward and backward: the selection has no gradient, the weights of the chosen rows have.
#pragma once

#include <tiffin/router/row_choice.hpp>
#include <tiffin/train/term_gradients.hpp>
#include <tiffin/train/trained_router.hpp>
#include <tiffin/train/trained_row_gate.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

TIFFIN_BEGIN

namespace train_detail {

template <class M>
class trained_row_router final : public any_trained_router<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;
    using parameter_type = const parameter<number>;
    using numbers = training_numbers<M>;
    using wide = typename numbers::wide;
    using dual = typename numbers::ops::dual;

public:
    trained_row_router(const plan_node& node, const bound_node& bound, std::size_t inputs,
                       training_preparation<number>& how)
        : ops_(ops<numbers>(node)),
          source_(node.source),
          top_k_(node.top_k),
          is_keyed_(node.kind->router == detail::router_kind::keys),
          products_(how.products),
          query_(&how.absent),
          bias_(&how.absent),
          keys_(&how.absent),
          inputs_(inputs),
          choices_(bound.choices),
          recorded_(bound.recorded) {
        for (std::size_t i = 0; i < bound.tensors.size(); ++i) {
            const tensor_kind kind = node.kind->tensors[i].kind;
            parameter_type* const p = how.of(bound, i, kind);
            if (kind == tensor_kind::query) query_ = p;
            if (kind == tensor_kind::query_bias) bias_ = p;
            if (kind == tensor_kind::row_ranges) ranges_ = bound.tensors[i];
            if (kind == tensor_kind::row_keys) gate_.emplace(node, p, bound.choices, inputs);
            if (kind != tensor_kind::half_keys) continue;
            keys_ = p;
            groups_ = p->given.shape[0];
            of_group_ = p->given.shape[1];
            half_ = p->given.shape[2];
        }
    }
    [[nodiscard]] std::size_t choices() const noexcept override { return choices_; }

    [[nodiscard]] routed_tokens<number> lay_out(step_memory& kept,
                                                std::size_t tokens) const noexcept override {
        routed_tokens<number> at;
        at.chosen = kept.take<choice<number>>(tokens * choices_);
        at.queries = kept.take<number>(tokens * queries());
        at.logits = kept.take<number>(tokens * groups_ * of_group_);
        at.weights = kept.take<number>(gate_ ? tokens * choices_ : 0);
        at.products = kept.take<number>(gate_ ? tokens * choices_ : 0);
        return at;
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const noexcept override {
        step_memory forth, back;
        take_forward(forth, tokens);
        take_backward(back, tokens);
        const std::size_t most =
            is_keyed_ ? std::max(products_.bytes_both_ways(tokens, queries(), inputs_, workers),
                                 products_.bytes_both_ways(tokens, of_group_, half_, workers))
                      : 0;
        return std::max(forth.used(), back.used()) + most;
    }

    void forward(const call_type& call, const number* x, const routed_tokens<number>& at,
                 step_memory scratch) const override {
        const forward_areas room = take_forward(scratch, call.tokens);
        if (is_keyed_) score(call, x, at, scratch);
        call.each_tokens(call.tokens, [&](std::size_t chunk, std::size_t first, std::size_t last) {
            for (std::size_t t = first; t < last; ++t) {
                choice<number>* const chosen = at.chosen + t * choices_;
                wide* const wides = room.wides + chunk * 7 * choices_;
                if (is_keyed_) {
                    number* const scores = room.scores + chunk * groups_ * of_group_;
                    for (std::size_t g = 0; g < groups_; ++g)
                        std::copy_n(at.logits + (g * call.tokens + t) * of_group_, of_group_,
                                    scores + g * of_group_);
                    ops_.choose_rows(source_, scores, groups_ / 2, of_group_, wides, chosen);
                } else {
                    const std::size_t id = static_cast<std::size_t>(call.ids[t]);
                    take_range(static_cast<std::int32_t>(detail::load_integer(ranges_, 2 * id)),
                               static_cast<std::int32_t>(detail::load_integer(ranges_, 2 * id + 1)), choices_,
                               chosen);
                }
                if (gate_) gate_->forward(x, at, t, room.duals + chunk * 2 * choices_);
            }
        });
        if (recorded_ && call.routes != nullptr)
            for (std::size_t i = 0; i < call.tokens * choices_; ++i)
                call.routes[i] = {at.chosen[i].expert, static_cast<float>(at.chosen[i].weight)};
    }

    void backward(const call_type& call, const number* x, const routed_tokens<number>& at,
                  const number* d_weights, number* dx, step_memory scratch) const override {
        const backward_areas d = take_backward(scratch, call.tokens);
        const number* d_chosen = d_weights;
        if (gate_) {
            call.each_tokens(call.tokens, [&](std::size_t chunk, std::size_t first, std::size_t last) {
                for (std::size_t p = first * choices_; p < last * choices_; p += choices_)
                    gate_->backward(at, p / choices_, d_weights + p, d.weights + p, d.products + p,
                                    d.duals + chunk * 2 * choices_);
            });
            gate_->add_products(call, x, at, d.products, dx);
            d_chosen = d.weights;
        }
        if (is_keyed_) {
            std::fill_n(d.scores, groups_ * call.tokens * of_group_, number(0));
            call.each_tokens(call.tokens, [&](std::size_t chunk, std::size_t first, std::size_t last) {
                for (std::size_t t = first; t < last; ++t)
                    choice_back(call, at, t, d_chosen, d.scores, d.sums + chunk * 2 * choices_,
                                d.duals + chunk * 2 * choices_);
            });
            score_back(call, x, at, d, dx, scratch);
        }
    }

private:
    struct forward_areas {
        number* scores;  // per chunk: (groups, keys) of a token
        wide* wides;
        dual* duals;
    };
    struct backward_areas {
        number *weights, *products;  // (tokens, choices): of weights before the gate, of key products
        number* scores;              // (groups, tokens, keys)
        number* queries;             // (tokens, groups half)
        number* part;                // (tokens, half)
        number* sums;                // per chunk: score sums of a head's choices, and their gradients
        dual* duals;                 // per chunk
    };
    forward_areas take_forward(step_memory& from, std::size_t tokens) const noexcept {
        const std::size_t chunks = call_type::chunks_of(tokens);
        number* const scores = from.take<number>(chunks * groups_ * of_group_);
        wide* const wides = from.take<wide>(chunks * 7 * choices_);
        return {scores, wides, from.take<dual>(gate_ ? chunks * 2 * choices_ : 0)};
    }
    backward_areas take_backward(step_memory& from, std::size_t tokens) const noexcept {
        backward_areas d{};
        d.weights = from.take<number>(gate_ ? tokens * choices_ : 0);
        d.products = from.take<number>(gate_ ? tokens * choices_ : 0);
        d.scores = from.take<number>(groups_ * tokens * of_group_);
        d.queries = from.take<number>(tokens * queries());
        d.part = from.take<number>(tokens * half_);
        d.sums = from.take<number>(call_type::chunks_of(tokens) * 2 * choices_);
        d.duals = from.take<dual>(call_type::chunks_of(tokens) * 2 * choices_);
        return d;
    }
    [[nodiscard]] std::size_t queries() const noexcept { return groups_ * half_; }
    [[nodiscard]] factor<number> keys_of(std::size_t g, bool transposed = false) const noexcept {
        return {keys_->values() + g * of_group_ * half_, half_, transposed};
    }

    void score(const call_type& call, const number* x, const routed_tokens<number>& at,
               const step_memory& scratch) const {
        products_.multiply(call, call.tokens, queries(), inputs_, {x, inputs_}, {query_->values(), inputs_},
                           at.queries, false, scratch.rest());
        if (bias_->is_given())
            for (std::size_t i = 0; i < call.tokens * queries(); ++i)
                at.queries[i] = at.queries[i] + bias_->values()[i % queries()];
        for (std::size_t g = 0; g < groups_; ++g)
            products_.multiply(call, call.tokens, of_group_, half_, {at.queries + g * half_, queries()},
                               keys_of(g), at.logits + g * call.tokens * of_group_, false, scratch.rest());
    }
    // Backward of the weights of a token's choices: to the half-key scores whose sums they were computed from.
    void choice_back(const call_type& call, const routed_tokens<number>& at, std::size_t t,
                     const number* d_weights, number* d_scores, number* sums, dual* room) const {
        for (std::size_t h = 0; h < groups_ / 2; ++h) {
            const std::size_t first = t * choices_ + h * top_k_;
            const auto score_at = [&](number* scores, std::size_t i, std::size_t half) -> number& {
                const auto row = static_cast<std::size_t>(at.chosen[first + i].expert);
                const std::size_t key = half == 0 ? row / of_group_ : row % of_group_;
                return scores[((2 * h + half) * call.tokens + t) * of_group_ + key];
            };
            for (std::size_t i = 0; i < top_k_; ++i)
                sums[i] = score_at(at.logits, i, 0) + score_at(at.logits, i, 1);
            ops_.choose_rows_back(source_, sums, top_k_, d_weights + first, room, sums + top_k_);
            for (std::size_t i = 0; i < top_k_; ++i)
                for (const std::size_t half : {0u, 1u}) {
                    number& to = score_at(d_scores, i, half);
                    to = to + sums[top_k_ + i];
                }
        }
    }
    void score_back(const call_type& call, const number* x, const routed_tokens<number>& at,
                    const backward_areas& d, number* dx, const step_memory& scratch) const {
        const std::size_t n = call.tokens;
        for (std::size_t g = 0; g < groups_; ++g) {
            const number* const scores = d.scores + g * n * of_group_;
            products_.multiply(call, n, half_, of_group_, {scores, of_group_}, keys_of(g, true), d.part,
                               false, scratch.rest());
            for (std::size_t t = 0; t < n; ++t)
                std::copy_n(d.part + t * half_, half_, d.queries + t * queries() + g * half_);
            if (keys_->gradient != nullptr)
                products_.multiply(call, of_group_, half_, n, {scores, of_group_, true},
                                   {at.queries + g * half_, queries(), true},
                                   keys_->gradient + g * of_group_ * half_, true, scratch.rest());
        }
        add_sums(call, *bias_, queries(), n, d.queries);
        multiply_back(products_, call, *query_, {x, inputs_}, {d.queries, queries()}, dx, scratch);
    }

    const typename numbers::ops& ops_;
    const void* source_;
    std::size_t top_k_;
    bool is_keyed_;
    product_functions<number> products_;
    std::optional<trained_row_gate<M>> gate_;
    parameter_type* query_;
    parameter_type* bias_;
    parameter_type* keys_;
    tensor_view ranges_{};
    std::size_t inputs_;
    std::size_t choices_;
    std::size_t groups_ = 0;
    std::size_t of_group_ = 0;
    std::size_t half_ = 0;
    bool recorded_;
};

}  // namespace train_detail

TIFFIN_END
