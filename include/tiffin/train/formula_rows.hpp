// A formula over sources, forward and back: one evaluation over numbers with partials gives every slot its gradient.
#pragma once

#include <tiffin/train/formula_slots.hpp>
#include <tiffin/train/places.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace train_detail {

// y = formula(tensors). What a slot's partials become follows from its kind: see formula_slots.hpp.
// Numerics: norms and gates add up products register by register; sums over tokens are those of chunks of tokens, added in their
//   order. Both are the same whatever number of threads.
template <class M, source_policy S>
class formula_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using value = typename M::value;
    using call_type = training_call<number>;
    using slots_type = formula_slots<M, S>;
    using buffers = typename slots_type::buffers;
    using sums = typename slots_type::sums;
    using token = token_slots<number, slot_count<S>()>;
    static constexpr std::size_t norms = count_of<S>(tensor_kind::row_scale);

public:
    formula_rows(const S& source, const bound_node& bound, const engine_detail::source_sizes& sizes,
                 training_preparation<number>& how)
        : source_(source), width_(sizes.outputs), slots_(source, bound, sizes, how) {}

    void keep(step_memory& kept, std::size_t tokens) const override {
        lay_out(kept, tokens);
        slots_.keep_parts(kept, tokens);
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const override {
        step_memory areas;
        slots_.lay_out_gradients(areas, tokens);
        return areas.used() + slots_.scratch_bytes(tokens, workers);
    }

    void forward(const call_type& call, const number* x, number* y, step_memory& kept,
                 step_memory scratch) const override {
        const memory at = lay_out(kept, call.tokens);
        slots_.forward(call, x, at.slot_buffers, kept, scratch);
        call.each_tokens(call.tokens, [&](std::size_t, std::size_t first, std::size_t last) {
            for (std::size_t t = first; t < last; ++t) {
                token now;
                slots_.point(call, x, at.slot_buffers, t, now);
                each_norm([&]<std::size_t First>(const auto& node) {
                    number* const sum = at.sums + t * norms + ordinal_of<S, First>;
                    *sum = sum_of_products<First>(node, now);
                    now.numbers[First] = scale_of_row(node, *sum, number(static_cast<float>(width_)));
                });
                for (std::size_t j = 0; j < width_; j += M::width) {
                    const std::size_t count = std::min(M::width, width_ - j);
                    M::store(evaluate(source_, value_place<M, S>{now, j, count}), y + t * width_ + j, count);
                }
            }
        });
    }

    void backward(const call_type& call, const number* x, const number* dy, number* dx, step_memory& kept,
                  step_memory scratch) const override {
        const memory at = lay_out(kept, call.tokens);
        sums gradients = slots_.lay_out_gradients(scratch, call.tokens);
        slots_.clear_sums(gradients);
        call.each_tokens(call.tokens, [&](std::size_t chunk, std::size_t first, std::size_t last) {
            for (std::size_t t = first; t < last; ++t) {
                token now;
                slots_.point(call, x, at.slot_buffers, t, now);
                each_norm([&]<std::size_t First>(const auto& node) {
                    now.numbers[First] = scale_of_row(node, at.sums[t * norms + ordinal_of<S, First>],
                                                      number(static_cast<float>(width_)));
                });
                auto to = slots_.targets(call, gradients, dx, chunk, t);
                differentiate(now, dy + t * width_, to);
                // A norm's scale is a number that all features read: what they give it goes on to the row it is of.
                each_norm_backwards([&]<std::size_t First>(const auto& node) {
                    using dual = partials<number, 1>;
                    const number sum = at.sums[t * norms + ordinal_of<S, First>], none(0);
                    const dual scale =
                        scale_of_row(node, dual::variable(sum, 0), dual(number(static_cast<float>(width_))));
                    number d_sum = to.numbers[First] * scale.by[0];
                    // A row of zeros has the gradient 0 also where a norm's scale has no derivative: x / |x|.
                    using tiffin::select;
                    if constexpr (row_normed_source<std::remove_cvref_t<decltype(node)>>)
                        d_sum = select(none < sum, d_sum, none);
                    differentiate_sum<First>(node, now, d_sum, to);
                });
                slots_.add_numbers(gradients, chunk, to);
            }
        });
        slots_.backward(call, x, at.slot_buffers, gradients, dx, kept, scratch);
    }

private:
    struct memory {
        buffers slot_buffers;
        number* sums;  // (tokens, norms): what each scale is made of
    };
    memory lay_out(step_memory& kept, std::size_t tokens) const {
        const buffers slot_buffers = slots_.lay_out(kept, tokens);
        return {slot_buffers, kept.take<number>(tokens * norms)};
    }

    template <class Visit>
    void each_norm(const Visit& visit) const {
        visit_nodes(source_, [&]<std::size_t First>(const auto& node) {
            if constexpr (row_scaled_source<std::remove_cvref_t<decltype(node)>>)
                visit.template operator()<First>(node);
        });
    }
    // Wholes before their parts.
    template <class Visit>
    void each_norm_backwards(const Visit& visit) const {
        for (std::size_t i = norms; i-- > 0;) {
            std::size_t number_of_norm = 0;
            each_norm([&]<std::size_t First>(const auto& node) {
                if (number_of_norm++ == i) visit.template operator()<First>(node);
            });
        }
    }

    template <std::size_t First, class Node>
    number sum_of_products(const Node& node, const token& now) const {
        value total = M::all(number(0));
        for (std::size_t j = 0; j < width_; j += M::width) {
            const std::size_t count = std::min(M::width, width_ - j);
            const auto factors = factors_of_row<First>(node, value_place<M, S>{now, j, count});
            total = total + M::first(factors.left * factors.right, count);
        }
        return M::sum(total);
    }
    template <class Targets>
    void differentiate(const token& now, const number* dy, Targets& to) const {
        for (std::size_t j = 0; j < width_; j += M::width) {
            const std::size_t count = std::min(M::width, width_ - j);
            const auto p = evaluate(source_, partials_place<M, S>{{now, j, count}});
            slots_.template deposit<false>(p.by, M::load(dy + j, count), j, count, to);
        }
    }
    template <std::size_t First, class Node, class Targets>
    void differentiate_sum(const Node& node, const token& now, number d_sum, Targets& to) const {
        for (std::size_t j = 0; j < width_; j += M::width) {
            const std::size_t count = std::min(M::width, width_ - j);
            const auto factors = factors_of_row<First>(node, partials_place<M, S>{{now, j, count}});
            const auto product = factors.left * factors.right;
            slots_.template deposit<true>(product.by, M::all(d_sum), j, count, to);
        }
    }

    [[no_unique_address]] S source_;
    std::size_t width_;
    slots_type slots_;
};

}  // namespace train_detail

TIFFIN_END
