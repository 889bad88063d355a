// A router, forward and backward: the selection has no gradient, the weights of the chosen experts have.
#pragma once

#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/train/term_gradients.hpp>
#include <tiffin/train/trained_rows.hpp>
#include <tiffin/train/training_numbers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

TIFFIN_BEGIN

namespace train_detail {

// The choices of the tokens of a call, and the tokens grouped by expert. A pair is token * choices + choice.
template <class Number>
struct routed_tokens {
    choice<Number>* chosen = nullptr;  // (tokens, choices)
    Number* logits = nullptr;          // (tokens, experts); of a row router the scores (groups, tokens, keys)
    std::uint32_t* begin = nullptr;    // (experts + 1): an expert's first pair
    std::uint32_t* tokens = nullptr;   // (tokens choices), by expert, ascending
    std::uint32_t* pairs = nullptr;    // likewise
    Number* weights = nullptr;         // likewise; of a row router before the gate, (tokens, choices)
    Number* queries = nullptr;         // of a row router, (tokens, groups half)
    Number* products = nullptr;        // likewise, (tokens, choices): x times the row keys
};

template <class Number>
class any_trained_router {
public:
    virtual ~any_trained_router() = default;
    [[nodiscard]] virtual std::size_t choices() const noexcept = 0;
    [[nodiscard]] virtual routed_tokens<Number> lay_out(step_memory& kept,
                                                        std::size_t tokens) const noexcept = 0;
    [[nodiscard]] virtual std::size_t scratch_bytes(std::size_t tokens,
                                                    std::size_t workers) const noexcept = 0;
    virtual void forward(const training_call<Number>& call, const Number* x, const routed_tokens<Number>& at,
                         step_memory scratch) const = 0;
    // d_weights (tokens, choices): gradient of the weights of the chosen experts.
    virtual void backward(const training_call<Number>& call, const Number* x, const routed_tokens<Number>& at,
                          const Number* d_weights, Number* dx, step_memory scratch) const = 0;
};

// A learned router (logits), or a map from ids to experts.
template <class M>
class trained_router final : public any_trained_router<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;
    using numbers = training_numbers<M>;
    using wide = typename numbers::wide;
    using dual = typename numbers::ops::dual;

public:
    trained_router(const plan_node& node, const bound_node& bound, std::size_t experts, std::size_t inputs,
                   training_preparation<number>& how)
        : ops_(ops<numbers>(node)),
          source_(node.source),
          is_learned_(node.kind->router == detail::router_kind::learned),
          products_(how.products),
          weight_(&how.absent),
          bias_(&how.absent),
          inputs_(inputs),
          experts_(experts),
          choices_(bound.choices),
          recorded_(bound.recorded) {
        for (std::size_t i = 0; i < bound.tensors.size(); ++i) {
            const tensor_kind kind = node.kind->tensors[i].kind;
            const auto* const p = how.of(bound, i, kind);
            if (kind == tensor_kind::logits) {
                weight_ = p;
                experts_ = p->given.shape[0];
            }
            if (kind == tensor_kind::selection_bias && p->is_given()) bias_ = p;
            if (kind == tensor_kind::route_map) map_ = bound.tensors[i];
        }
    }
    [[nodiscard]] std::size_t choices() const noexcept override { return choices_; }

    [[nodiscard]] routed_tokens<number> lay_out(step_memory& kept,
                                                std::size_t tokens) const noexcept override {
        routed_tokens<number> at;
        at.chosen = kept.take<choice<number>>(tokens * choices_);
        if (is_learned_) at.logits = kept.take<number>(tokens * experts_);
        at.begin = kept.take<std::uint32_t>(experts_ + 1);
        at.tokens = kept.take<std::uint32_t>(tokens * choices_);
        at.pairs = kept.take<std::uint32_t>(tokens * choices_);
        at.weights = kept.take<number>(tokens * choices_);
        return at;
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const noexcept override {
        if (!is_learned_) return 0;
        step_memory areas;
        areas.take<number>(tokens * experts_);
        areas.take<dual>(call_type::chunks_of(tokens) * (experts_ + 2 * choices_));
        return areas.used() + products_.bytes_both_ways(tokens, experts_, inputs_, workers);
    }

    void forward(const call_type& call, const number* x, const routed_tokens<number>& at,
                 step_memory scratch) const override {
        if (is_learned_) {
            products_.multiply(call, call.tokens, experts_, inputs_, {x, inputs_},
                               {weight_->values(), inputs_}, at.logits, false, scratch.rest());
            auto* const room = scratch.take<wide>(call_type::chunks_of(call.tokens) * 2 * experts_);
            const number* const bias = bias_->is_given() ? bias_->values() : nullptr;
            call.each_tokens(call.tokens, [&](std::size_t chunk, std::size_t first, std::size_t last) {
                for (std::size_t t = first; t < last; ++t)
                    ops_.choose(source_, at.logits + t * experts_, experts_, bias,
                                room + chunk * 2 * experts_, at.chosen + t * choices_);
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
        if (!is_learned_) return;
        number* const d_logits = scratch.take<number>(call.tokens * experts_);
        const std::size_t duals = experts_ + 2 * choices_;
        auto* const room = scratch.take<dual>(call_type::chunks_of(call.tokens) * duals);
        call.each_tokens(call.tokens, [&](std::size_t chunk, std::size_t first, std::size_t last) {
            for (std::size_t t = first; t < last; ++t)
                ops_.choose_back(source_, at.logits + t * experts_, experts_, at.chosen + t * choices_,
                                 choices_, d_weights + t * choices_, room + chunk * duals,
                                 d_logits + t * experts_);
        });
        if (recorded_ && call.d_logits != nullptr)
            for (std::size_t i = 0; i < call.tokens * experts_; ++i)
                d_logits[i] = d_logits[i] + call.d_logits[i];
        multiply_back(products_, call, *weight_, {x, inputs_}, {d_logits, experts_}, dx, scratch);
    }

private:
    // Groups the tokens by expert: a counting sort.
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

    const typename numbers::ops& ops_;
    const void* source_;
    bool is_learned_;
    product_functions<number> products_;
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
