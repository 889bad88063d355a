// A formula over sources, forward and backward: the steps of its plan per token, differentiated in reverse.
#pragma once

#include <tiffin/train/formula_terms.hpp>

#include <algorithm>
#include <cstddef>

TIFFIN_BEGIN

namespace train_detail {

// y = formula(terms). The backward of each kind of term: see formula_terms.hpp. Backward recomputes step values.
// Numerics: norms and gates sum products register by register; sums over tokens are per chunk of tokens, added in the
//   order of the chunks. Both are the same for any number of threads.
template <class M>
class formula_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;
    using terms_type = formula_terms<M>;
    using numbers = training_numbers<M>;
    using step = formula_step<number, typename numbers::wide>;

public:
    formula_rows(const plan_node& node, const bound_node& bound, const engine_detail::source_sizes& sizes,
                 training_preparation<number>& how)
        : terms_(node, bound, sizes, how), plan_(terms_.plan()), width_(sizes.outputs) {}

    void keep(step_memory& kept, std::size_t tokens) const override {
        terms_.lay_out(kept, tokens);
        terms_.keep_parts(kept, tokens);
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const override {
        step_memory areas;
        terms_.lay_out_gradients(areas, tokens);
        lay_out(areas, workers);
        return areas.used() + terms_.scratch_bytes(tokens, workers);
    }

    void forward(const call_type& call, const number* x, number* y, step_memory& kept,
                 step_memory scratch) const override {
        auto at = terms_.lay_out(kept, call.tokens);
        at.root = y;
        const memory all = lay_out(scratch, call.workers);
        terms_.forward(call, x, at, kept, scratch);
        if (plan_.steps.empty()) return;
        call.each_tokens_by_worker(call.tokens,
                                   [&](std::size_t worker, std::size_t, std::size_t first, std::size_t last) {
                                       const token now = of_worker(all, worker);
                                       for (std::size_t t = first; t < last; ++t) {
                                           point(call, x, at, t, now);
                                           now.values[plan_.root] = y + t * width_;
                                           for (const step& s : plan_.steps) evaluate(s, now);
                                       }
                                   });
    }

    void backward(const call_type& call, const number* x, const number* dy, number* dx, step_memory& kept,
                  step_memory scratch) const override {
        const auto at = terms_.lay_out(kept, call.tokens);
        auto gradients = terms_.lay_out_gradients(scratch, call.tokens);
        gradients.root = dy;
        terms_.clear_sums(gradients);
        const memory all = lay_out(scratch, call.workers);
        if (!plan_.steps.empty())
            call.each_tokens_by_worker(
                call.tokens, [&](std::size_t worker, std::size_t chunk, std::size_t first, std::size_t last) {
                    const token now = of_worker(all, worker);
                    for (std::size_t t = first; t < last; ++t) {
                        point(call, x, at, t, now);
                        for (std::size_t i = 0; i < plan_.terms.size(); ++i) {
                            const auto is = plan_.terms[i].is;
                            if (is == what::tensor || is == what::part)
                                now.d[i] = terms_.gradients_of(call, gradients, dx, chunk, i, t);
                        }
                        for (std::size_t s = 0; s + 1 < plan_.steps.size(); ++s)
                            evaluate(plan_.steps[s], now);
                        scale_of(plan_.steps.back(), now);
                        for (std::size_t s = plan_.steps.size(); s-- > 0;)
                            differentiate(
                                plan_.steps[s], now,
                                s + 1 == plan_.steps.size() ? dy + t * width_ : now.d[plan_.steps[s].out]);
                    }
                });
        terms_.backward(call, x, at, gradients, dx, kept, scratch);
    }

private:
    using what = typename formula_term<number>::what;

    // A worker's own memory: values and gradients of steps and scales, and pointers to the values and the gradient of
    // every term.
    struct token {
        number *rows, *scales;
        const number** values;
        number** d;
    };
    struct memory {
        std::byte* begin;
        std::size_t of_one;
    };
    [[nodiscard]] std::size_t row_step() const noexcept {
        return (width_ + M::width - 1) / M::width * M::width;
    }
    token take_token(step_memory& from) const {
        number* const rows = from.take<number>(2 * plan_.values * row_step());
        number* const scales = from.take<number>(2 * plan_.scales);
        auto** const values = from.take<const number*>(plan_.terms.size());
        return {rows, scales, values, from.take<number*>(plan_.terms.size())};
    }
    memory lay_out(step_memory& from, std::size_t workers) const {
        step_memory one;
        take_token(one);
        return {from.take<std::byte>(workers * one.used()), one.used()};
    }
    token of_worker(const memory& all, std::size_t worker) const {
        step_memory from(all.begin + worker * all.of_one);
        const token now = take_token(from);
        for (std::size_t i = 0; i < plan_.terms.size(); ++i) {
            const auto& t = plan_.terms[i];
            now.d[i] = nullptr;
            now.values[i] = nullptr;
            if (t.is == what::value && i != plan_.root) {
                now.values[i] = now.rows + t.place * row_step();
                now.d[i] = now.rows + (plan_.values + t.place) * row_step();
            } else if (t.is == what::scale) {
                now.values[i] = now.scales + t.place;
                now.d[i] = now.scales + plan_.scales + t.place;
            }
        }
        return now;
    }
    // Sets the pointers to the values that no step computes.
    void point(const call_type& call, const number* x, const typename terms_type::buffers& at, std::size_t t,
               const token& now) const {
        for (std::size_t i = 0; i < plan_.terms.size(); ++i)
            if (plan_.terms[i].is == what::tensor || plan_.terms[i].is == what::part)
                now.values[i] = terms_.values_of(call, x, at, i, t);
    }

    // Values and scales are in a worker's memory (of_worker); those of tensors are never written.
    static number* written(const number* value) noexcept { return const_cast<number*>(value); }

    // Computes the scale of a step; returns the dot product that it depends on.
    number scale_of(const step& s, const token& now) const {
        if (s.scale == no_term) return number(0);
        const number sum = dot<M>(now.values[s.left], now.values[s.right], width_);
        *written(now.values[s.scale]) = s.ops->scale(s.source, sum, number(static_cast<float>(width_)));
        return sum;
    }
    void evaluate(const step& s, const token& now) const {
        number* const out = written(now.values[s.out]);
        if (s.ops == nullptr) return add_up(s, now, out);
        scale_of(s, now);
        const number* in[plan_detail::most_operands];
        point_at(s, now.values, in);
        s.ops->value({s.ops->policy(s.source), in, width_, out, nullptr, nullptr, nullptr});
    }
    template <class Pointer>
    static void point_at(const step& s, Pointer const* of, Pointer* to) noexcept {
        for (std::size_t k = 0; k < s.in.size(); ++k) to[k] = s.in[k] != no_term ? of[s.in[k]] : nullptr;
    }
    void differentiate(const step& s, const token& now, const number* d_out) const {
        if (s.ops == nullptr) return share(s, now, d_out);
        const number* in[plan_detail::most_operands];
        number* d_in[plan_detail::most_operands];
        point_at(s, now.values, in);
        point_at(s, now.d, d_in);
        if (s.scale != no_term) *now.d[s.scale] = number(0);
        s.ops->back({s.ops->policy(s.source), in, width_, nullptr, d_out, d_in, s.is_added.get()});
        if (s.scale != no_term) differentiate_scale(s, now);
    }
    // Backward of the scale: its gradient, summed over all features, to the two rows of the dot product.
    void differentiate_scale(const step& s, const token& now) const {
        const number sum = dot<M>(now.values[s.left], now.values[s.right], width_), none(0);
        number d_sum = *now.d[s.scale] * s.ops->slope(s.source, sum, number(static_cast<float>(width_)));
        // A row of zeros has the gradient 0, also where a norm's scale has no derivative: x / |x|.
        using tiffin::select;
        const bool is_norm = s.left == s.right;
        if (is_norm) d_sum = select(none < sum, d_sum, none);
        add_scaled(now.values[s.right], d_sum, s.adds_left, now.d[s.left]);
        add_scaled(now.values[s.left], d_sum, s.adds_right, now.d[s.right]);
    }

    // to (+)= row factor.
    void add_scaled(const number* row, number factor, bool is_added, number* to) const {
        if (to == nullptr) return;
        for (std::size_t j = 0; j < width_; j += M::width) {
            const std::size_t n = std::min(M::width, width_ - j);
            const auto part = row != nullptr ? M::load(row + j, n) * M::all(factor) : M::all(number(0));
            M::store(is_added ? M::load(to + j, n) + part : part, to + j, n);
        }
    }
    void add_up(const step& s, const token& now, number* out) const {
        for (std::size_t j = 0; j < width_; j += M::width) {
            const std::size_t n = std::min(M::width, width_ - j);
            auto total = M::all(number(0));
            for (std::size_t k = 0; k < s.in.size(); ++k) {
                const number* const row = now.values[s.in[k]];
                if (row == nullptr) continue;
                const auto one = plan_.terms[s.in[k]].is_number() ? M::all(*row) : M::load(row + j, n);
                total = k == 0 ? one : total + one;
            }
            M::store(total, out + j, n);
        }
    }
    void share(const step& s, const token& now, const number* d_out) const {
        for (std::size_t k = 0; k < s.in.size(); ++k) {
            number* const to = now.d[s.in[k]];
            if (to == nullptr) continue;
            if (!plan_.terms[s.in[k]].is_number()) {
                add_scaled(d_out, number(1), s.is_added[k], to);
                continue;
            }
            auto total = M::all(number(0));
            for (std::size_t j = 0; j < width_; j += M::width)
                total = total + M::load(d_out + j, std::min(M::width, width_ - j));
            *to = *to + M::sum(total);
        }
    }

    terms_type terms_;
    const typename formula_terms<M>::plan_type& plan_;
    std::size_t width_;
};

}  // namespace train_detail

TIFFIN_END
