// A mixture of experts, forward and backward: each expert is called with the tokens that are routed to it.
#pragma once

#include <tiffin/train/trained_router.hpp>
#include <tiffin/train/trained_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

TIFFIN_BEGIN

namespace train_detail {

// y = Shared(x) + sum over the choices (e, w) of w Expert_e(x), experts ascending.
template <class M>
class mixture_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    mixture_rows(const plan_node& node, const bound_node& bound, const engine_detail::source_sizes& sizes,
                 training_preparation<number>& how)
        : width_(sizes.outputs),
          inputs_(sizes.inputs),
          residual_(how.residual_width),
          given_(how.given_width),
          router_(node, bound, bound.parts.size() - node.parts.size(), sizes.inputs, how) {
        const std::size_t first = node.parts.size();
        if (first > 0) shared_ = make_trained_rows<M>(node.parts[0], bound.parts[0], sizes, how);
        for (std::size_t e = first; e < bound.parts.size(); ++e)
            experts_.push_back(
                make_trained_rows<M>(node.repeated_part(e - first), bound.parts[e], sizes, how));
    }

    // Enough for any routes: `one` is for the rounding of each expert's areas to cache lines.
    void keep(step_memory& kept, std::size_t tokens) const override {
        lay_out(kept, tokens);
        if (shared_) shared_->keep(kept, tokens);
        step_memory all, one;
        for (const auto& expert : experts_) {
            step_memory most;
            lay_out_expert(most, tokens * router_.choices());
            expert->keep(most, tokens * router_.choices());
            all.move_to(std::max(all.used(), most.used()));
            lay_out_expert(one, 1);
            expert->keep(one, 1);
        }
        kept.move_to(kept.used() + all.used() + one.used());
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const override {
        step_memory areas;
        take_gradients(areas, tokens);
        std::size_t most = router_.scratch_bytes(tokens, workers);
        if (shared_) most = std::max(most, shared_->scratch_bytes(tokens, workers));
        for (const auto& expert : experts_) most = std::max(most, expert->scratch_bytes(tokens, workers));
        return areas.used() + most;
    }

    void forward(const call_type& call, const number* x, number* y, step_memory& kept,
                 step_memory scratch) const override {
        const routed_tokens<number> at = lay_out(kept, call.tokens);
        router_.forward(call, x, at, scratch);
        if (shared_)
            shared_->forward(call, x, y, kept, scratch);
        else
            std::fill_n(y, call.tokens * width_, number(0));
        each_expert(call, at, kept, [&](const auto& expert, call_type& part, const expert_rows& of) {
            gather(call, x, part, of);
            expert.forward(part, of.x, of.y, kept, scratch);
            call.each_tokens(part.tokens, [&](std::size_t, std::size_t first, std::size_t last) {
                for (std::size_t i = first; i < last; ++i)
                    for (std::size_t j = 0; j < width_; j += M::width) {
                        const std::size_t n = std::min(M::width, width_ - j);
                        number* const to = y + of.tokens[i] * width_ + j;
                        M::store(M::load(to, n) + M::all(of.weights[i]) * M::load(of.y + i * width_ + j, n),
                                 to, n);
                    }
            });
        });
    }

    void backward(const call_type& call, const number* x, const number* dy, number* dx, step_memory& kept,
                  step_memory scratch) const override {
        const routed_tokens<number> at = lay_out(kept, call.tokens);
        if (shared_) shared_->backward(call, x, dy, dx, kept, scratch);
        const gradients d = take_gradients(scratch, call.tokens);
        each_expert(call, at, kept, [&](const auto& expert, call_type& part, const expert_rows& of) {
            const std::size_t n = part.tokens;
            take_rows<M>(call, n, width_, dy, of.tokens, of.weights, d.y);
            call.each_tokens(n, [&](std::size_t, std::size_t first, std::size_t last) {
                for (std::size_t i = first; i < last; ++i)
                    d.weights[of.pairs[i]] = dot<M>(dy + of.tokens[i] * width_, of.y + i * width_, width_);
            });
            std::fill_n(d.x, n * inputs_, number(0));
            if (call.d_residual) std::fill_n(part.d_residual = d.residual, n * residual_, number(0));
            if (call.d_per_layer_input) std::fill_n(part.d_per_layer_input = d.given, n * given_, number(0));
            expert.backward(part, of.x, d.y, dx ? d.x : nullptr, kept, scratch);
            if (dx) add_rows<M>(call, n, inputs_, d.x, of.tokens, dx);
            if (call.d_residual) add_rows<M>(call, n, residual_, d.residual, of.tokens, call.d_residual);
            if (call.d_per_layer_input)
                add_rows<M>(call, n, given_, d.given, of.tokens, call.d_per_layer_input);
        });
        router_.backward(call, x, at, d.weights, dx, scratch);
    }

private:
    static constexpr const number* none = nullptr;
    // Areas for the tokens of one expert.
    struct expert_rows {
        number *x, *y, *residual, *given;
        std::int32_t* ids;
        std::uint32_t *token_slots, *numbers;
        const std::uint32_t *tokens, *pairs;
        const number* weights;
    };
    struct gradients {
        number *x, *y, *residual, *given, *weights;
    };

    routed_tokens<number> lay_out(step_memory& kept, std::size_t tokens) const {
        return router_.lay_out(kept, tokens);
    }
    expert_rows lay_out_expert(step_memory& kept, std::size_t n) const {
        expert_rows of{};
        of.x = kept.take<number>(n * inputs_);
        of.y = kept.take<number>(n * width_);
        of.residual = kept.take<number>(n * residual_);
        of.given = kept.take<number>(n * given_);
        of.ids = kept.take<std::int32_t>(n);
        of.token_slots = kept.take<std::uint32_t>(n);
        of.numbers = kept.take<std::uint32_t>(n);
        return of;
    }
    gradients take_gradients(step_memory& from, std::size_t tokens) const {
        gradients d{};
        d.x = from.take<number>(tokens * inputs_);
        d.y = from.take<number>(tokens * width_);
        d.residual = from.take<number>(tokens * residual_);
        d.given = from.take<number>(tokens * given_);
        d.weights = from.take<number>(tokens * router_.choices());
        return d;
    }
    // Calls visit(expert, call, areas) for each expert that has tokens.
    template <class Visit>
    void each_expert(const call_type& call, const routed_tokens<number>& at, step_memory& kept,
                     const Visit& visit) const {
        for (std::size_t e = 0; e < experts_.size(); ++e) {
            const std::size_t first = at.begin[e], n = at.begin[e + 1] - first;
            if (n == 0) continue;
            expert_rows of = lay_out_expert(kept, n);
            of.tokens = at.tokens + first;
            of.pairs = at.pairs + first;
            of.weights = at.weights + first;
            call_type part = call;
            part.tokens = n;
            part.ids = of.ids;
            part.token_slots = of.token_slots;
            part.numbers = of.numbers;
            part.residual = residual_ > 0 ? of.residual : nullptr;
            part.per_layer_input = given_ > 0 ? of.given : nullptr;
            part.routes = nullptr;
            part.logits = nullptr;
            part.d_logits = nullptr;
            visit(*experts_[e], part, of);
        }
    }
    void gather(const call_type& call, const number* x, const call_type& part, const expert_rows& of) const {
        take_rows<M>(call, part.tokens, inputs_, x, of.tokens, none, of.x);
        if (residual_ > 0)
            take_rows<M>(call, part.tokens, residual_, call.residual, of.tokens, none, of.residual);
        if (given_ > 0)
            take_rows<M>(call, part.tokens, given_, call.per_layer_input, of.tokens, none, of.given);
        for (std::size_t i = 0; i < part.tokens; ++i) {
            of.ids[i] = call.ids != nullptr ? call.ids[of.tokens[i]] : 0;
            of.token_slots[i] = call.token_slots != nullptr ? call.token_slots[of.tokens[i]] : 0;
            of.numbers[i] = static_cast<std::uint32_t>(call.number(of.tokens[i]));
        }
    }

    std::size_t width_;
    std::size_t inputs_;
    std::size_t residual_;  // its width; 0: the layer reads none
    std::size_t given_;     // likewise of per_layer_input
    trained_router<M> router_;
    std::unique_ptr<const trained_rows<number>> shared_;
    std::vector<std::unique_ptr<const trained_rows<number>>> experts_;
};

}  // namespace train_detail

TIFFIN_END
