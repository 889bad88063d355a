// A router, forward and back: the choice has no derivative, the weights of those chosen have.
#pragma once

#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/train/partials.hpp>
#include <tiffin/train/trained_rows.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace train_detail {

// Whom the tokens of a call chose, and the tokens grouped by expert: pairs are token * choices + choice.
template <class Number>
struct routed_tokens {
    choice<Number>* chosen = nullptr;  // (tokens, choices)
    Number* logits = nullptr;  // (tokens, experts); of a router of rows the scores (groups, tokens, keys)
    std::uint32_t* begin = nullptr;   // (experts + 1): of the pairs of an expert
    std::uint32_t* tokens = nullptr;  // (tokens choices), by expert, ascending
    std::uint32_t* pairs = nullptr;   // likewise
    Number* weights = nullptr;        // likewise; of rows before they are gated, (tokens, choices)
    Number* queries = nullptr;        // of a router of rows, (tokens, groups half)
    Number* products = nullptr;       // likewise, (tokens, choices): of the rows' keys
};

template <class Number>
class any_trained_router {
public:
    virtual ~any_trained_router() = default;
    [[nodiscard]] virtual std::size_t choices() const noexcept = 0;
    [[nodiscard]] virtual std::size_t experts() const noexcept = 0;
    [[nodiscard]] virtual routed_tokens<Number> lay_out(step_memory& kept,
                                                        std::size_t tokens) const noexcept = 0;
    [[nodiscard]] virtual std::size_t scratch_bytes(std::size_t tokens,
                                                    std::size_t workers) const noexcept = 0;
    virtual void forward(const training_call<Number>& call, const Number* x, const routed_tokens<Number>& at,
                         step_memory scratch) const = 0;
    // d_weights (tokens, choices): of the loss with respect to the weights of the chosen.
    virtual void backward(const training_call<Number>& call, const Number* x, const routed_tokens<Number>& at,
                          const Number* d_weights, Number* dx, step_memory scratch) const = 0;
};

template <class M, router_policy Router>
class trained_router final : public any_trained_router<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;
    static constexpr bool learned = learned_router<Router>;
    // Logits whose partials one evaluation carries.
    static constexpr std::size_t at_once = 8;
    // Routes and their derivatives do not depend on the precision of f32.
    using wide = std::conditional_t<std::is_floating_point_v<number>, double, number>;
    using dual = partials<wide, at_once>;

public:
    trained_router(const Router& router, const bound_node& bound, std::span<const tensor_kind> kinds,
                   std::size_t experts, std::size_t inputs, training_preparation<number>& how)
        : router_(router),
          weight_(&how.absent),
          bias_(&how.absent),
          inputs_(inputs),
          experts_(experts),
          choices_(bound.choices),
          recorded_(bound.recorded) {
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            const auto* const p = how.of(bound, i, kinds[i]);
            if (kinds[i] == tensor_kind::logits) {
                weight_ = p;
                experts_ = p->given.shape[0];
            }
            if (kinds[i] == tensor_kind::selection_bias && p->is_given()) bias_ = p;
            if (kinds[i] == tensor_kind::route_map) map_ = bound.tensors[i];
        }
    }
    [[nodiscard]] std::size_t choices() const noexcept override { return choices_; }
    [[nodiscard]] std::size_t experts() const noexcept override { return experts_; }

    [[nodiscard]] routed_tokens<number> lay_out(step_memory& kept,
                                                std::size_t tokens) const noexcept override {
        routed_tokens<number> at;
        at.chosen = kept.take<choice<number>>(tokens * choices_);
        if (learned) at.logits = kept.take<number>(tokens * experts_);
        at.begin = kept.take<std::uint32_t>(experts_ + 1);
        at.tokens = kept.take<std::uint32_t>(tokens * choices_);
        at.pairs = kept.take<std::uint32_t>(tokens * choices_);
        at.weights = kept.take<number>(tokens * choices_);
        return at;
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const noexcept override {
        if (!learned) return 0;
        step_memory areas;
        areas.take<number>(tokens * experts_);
        areas.take<dual>(call_type::chunks_of(tokens) * (experts_ + 2 * choices_));
        const std::size_t most = std::max({M::multiply_bytes(tokens, experts_, inputs_, workers),
                                           M::multiply_bytes(experts_, inputs_, tokens, workers),
                                           M::multiply_bytes(tokens, inputs_, experts_, workers)});
        return areas.used() + most;
    }

    void forward(const call_type& call, const number* x, const routed_tokens<number>& at,
                 step_memory scratch) const override {
        if constexpr (learned) {
            M::multiply(call, call.tokens, experts_, inputs_, {x, inputs_}, {weight_->values(), inputs_},
                        at.logits, false, scratch.rest());
            auto* const room = scratch.take<wide>(call_type::chunks_of(call.tokens) * 2 * experts_);
            const number* const bias = bias_->is_given() ? bias_->values() : nullptr;
            call.each_tokens(call.tokens, [&](std::size_t chunk, std::size_t first, std::size_t last) {
                for (std::size_t t = first; t < last; ++t)
                    choose(router_, at.logits + t * experts_, experts_, bias, room + chunk * 2 * experts_,
                           at.chosen + t * choices_);
            });
            if (recorded_ && call.logits != nullptr)
                std::copy_n(at.logits, call.tokens * experts_, call.logits);
        } else {
            for (std::size_t t = 0; t < call.tokens; ++t)
                for (std::size_t i = 0; i < choices_; ++i)
                    at.chosen[t * choices_ + i] = {
                        static_cast<std::int32_t>(
                            detail::load_integer(map_, static_cast<std::size_t>(call.ids[t]) * choices_ + i)),
                        number(1)};
        }
        if (recorded_ && call.routes != nullptr)
            for (std::size_t i = 0; i < call.tokens * choices_; ++i)
                call.routes[i] = {at.chosen[i].expert, static_cast<float>(at.chosen[i].weight)};
        group(call.tokens, at);
    }

    void backward(const call_type& call, const number* x, const routed_tokens<number>& at,
                  const number* d_weights, number* dx, step_memory scratch) const override {
        if constexpr (learned) {
            number* const d_logits = scratch.take<number>(call.tokens * experts_);
            const std::size_t duals = experts_ + 2 * choices_;
            auto* const room = scratch.take<dual>(call_type::chunks_of(call.tokens) * duals);
            call.each_tokens(call.tokens, [&](std::size_t chunk, std::size_t first, std::size_t last) {
                for (std::size_t t = first; t < last; ++t)
                    differentiate(at, t, d_weights + t * choices_, room + chunk * duals,
                                  d_logits + t * experts_);
            });
            if (recorded_ && call.d_logits != nullptr)
                for (std::size_t i = 0; i < call.tokens * experts_; ++i)
                    d_logits[i] = d_logits[i] + call.d_logits[i];
            if (weight_->gradient != nullptr)
                M::multiply(call, experts_, inputs_, call.tokens, {d_logits, experts_, true},
                            {x, inputs_, true}, weight_->gradient, true, scratch.rest());
            if (dx != nullptr)
                M::multiply(call, call.tokens, inputs_, experts_, {d_logits, experts_},
                            {weight_->values(), inputs_, true}, dx, true, scratch.rest());
        }
    }

private:
    // Tokens by expert, a counting sort.
    void group(std::size_t tokens, const routed_tokens<number>& at) const noexcept {
        std::fill_n(at.begin, experts_ + 1, 0u);
        const std::size_t pairs = tokens * choices_;
        for (std::size_t p = 0; p < pairs; ++p) ++at.begin[at.chosen[p].expert];
        std::uint32_t total = 0;
        for (std::size_t e = 0; e <= experts_; ++e) total += std::exchange(at.begin[e], total);
        for (std::size_t p = 0; p < pairs; ++p) {
            const std::uint32_t to = at.begin[at.chosen[p].expert]++;
            at.tokens[to] = static_cast<std::uint32_t>(p / choices_);
            at.pairs[to] = static_cast<std::uint32_t>(p);
            at.weights[to] = at.chosen[p].weight;
        }
        for (std::size_t e = experts_; e > 0; --e) at.begin[e] = at.begin[e - 1];
        at.begin[0] = 0;
    }
    // d_logits[e] = sum_i d_weights[i] dw_i / dlogit_e, some logits at a time.
    void differentiate(const routed_tokens<number>& at, std::size_t t, const number* d_weights, dual* room,
                       number* d_logits) const {
        const number* const logits = at.logits + t * experts_;
        const choice<number>* const chosen = at.chosen + t * choices_;
        dual* const scores = room;
        dual* const chosen_logits = scores + experts_;
        dual* const weights = chosen_logits + choices_;
        for (std::size_t from = 0; from < experts_; from += at_once) {
            const auto logit = [&](std::size_t e) {
                const wide v(logits[e]);
                return e >= from && e < from + at_once ? dual::variable(v, e - from) : dual(v);
            };
            for (std::size_t e = 0; e < experts_; ++e) scores[e] = logit(e);
            router_.score(scores, experts_);
            for (std::size_t i = 0; i < choices_; ++i) {
                const auto e = static_cast<std::size_t>(chosen[i].expert);
                weights[i] = scores[e];
                chosen_logits[i] = logit(e);
            }
            router_.weigh(chosen_logits, weights, choices_);
            for (std::size_t e = from; e < std::min(from + at_once, experts_); ++e) {
                wide total(0);
                for (std::size_t i = 0; i < choices_; ++i)
                    total = total + wide(d_weights[i]) * weights[i].by[e - from];
                d_logits[e] = static_cast<number>(total);
            }
        }
    }

    Router router_;
    const parameter<number>* weight_;
    const parameter<number>* bias_;
    tensor_view map_{};
    std::size_t inputs_;
    std::size_t experts_;
    std::size_t choices_;
    bool recorded_;
};

}  // namespace train_detail

TIFFIN_END
