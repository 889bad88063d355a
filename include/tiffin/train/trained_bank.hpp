// A bank of low-rank matrices, forward and backward: tokens grouped by chosen expert.
#pragma once

#include <tiffin/train/trained_router.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>

TIFFIN_BEGIN

namespace train_detail {

// value[t] = sum over its choices (e, w) of w B_e z, z = A_e x[t].
template <class M>
class trained_bank {
    using number = typename M::number;
    using call_type = training_call<number>;
    using tokens_type = routed_tokens<number>;

public:
    // a (experts, rank, inputs), b (experts, width, rank).
    trained_bank(const parameter<number>* a, const parameter<number>* b, std::size_t choices,
                 std::size_t inputs, std::size_t width, const product_functions<number>& products)
        : a_(a), b_(b), choices_(choices), inputs_(inputs), width_(width), products_(products) {}

    // z of every (token, choice) pair, grouped by expert.
    [[nodiscard]] number* lay_out(step_memory& kept, std::size_t tokens) const noexcept {
        return kept.take<number>(tokens * choices_ * rank());
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        step_memory areas;
        lay_out_scratch(areas, tokens);
        return areas.used() + std::min(workers, experts()) * product_bytes(tokens);
    }
    void forward(const call_type& call, const number* x, const tokens_type& at, number* z, number* value,
                 step_memory scratch) const {
        const buffers all = lay_out_scratch(scratch, call.tokens);
        const std::size_t r = rank();
        each_expert(
            call, at, scratch,
            [&](const call_type& alone, std::size_t e, std::size_t first, std::size_t n, std::byte* memory) {
                const buffers room = from(all, first);
                number* const ranks = z + first * r;
                take_rows<M>(alone, n, inputs_, x, at.tokens + first, none, room.inputs);
                products_.multiply(alone, n, r, inputs_, {room.inputs, inputs_}, {a(e), inputs_}, ranks,
                                   false, memory);
                weigh(n, ranks, at.weights + first, room.ranks);
                products_.multiply(alone, n, width_, r, {room.ranks, r}, {b(e), r}, room.rows, false, memory);
            });
        std::fill_n(value, call.tokens * width_, number(0));
        add_rows_in_order<M>(call, call.tokens * choices_, width_, all.rows, at.tokens, value);
    }
    // d_weights (tokens, choices) += the gradient of the choices' weights.
    void backward(const call_type& call, const number* x, const tokens_type& at, const number* z,
                  const number* d_value, number* d_weights, number* dx, step_memory scratch) const {
        const buffers all = lay_out_scratch(scratch, call.tokens);
        const std::size_t r = rank();
        each_expert(
            call, at, scratch,
            [&](const call_type& alone, std::size_t e, std::size_t first, std::size_t n, std::byte* memory) {
                const buffers room = from(all, first);
                const number* const ranks = z + first * r;
                const number* const weights = at.weights + first;
                take_rows<M>(alone, n, width_, d_value, at.tokens + first, none, room.rows);
                if (b_->gradient != nullptr) {
                    weigh(n, ranks, weights, room.ranks);
                    products_.multiply(alone, width_, r, n, {room.rows, width_, true}, {room.ranks, r, true},
                                       b_->gradient + e * width_ * r, true, memory);
                }
                // Gradient of w z, then of w and of z.
                products_.multiply(alone, n, r, width_, {room.rows, width_}, {b(e), r, true}, room.ranks,
                                   false, memory);
                for (std::size_t i = 0; i < n; ++i) {
                    number total(0);
                    for (std::size_t k = 0; k < r; ++k) {
                        number& d = room.ranks[i * r + k];
                        total = total + d * ranks[i * r + k];
                        d = d * weights[i];
                    }
                    number& to = d_weights[at.pairs[first + i]];
                    to = to + total;
                }
                if (a_->gradient != nullptr) {
                    take_rows<M>(alone, n, inputs_, x, at.tokens + first, none, room.inputs);
                    products_.multiply(alone, r, inputs_, n, {room.ranks, r, true},
                                       {room.inputs, inputs_, true}, a_->gradient + e * r * inputs_, true,
                                       memory);
                }
                if (dx != nullptr)
                    products_.multiply(alone, n, inputs_, r, {room.ranks, r}, {a(e), inputs_, true},
                                       room.inputs, false, memory);
            });
        if (dx != nullptr)
            add_rows_in_order<M>(call, call.tokens * choices_, inputs_, all.inputs, at.tokens, dx);
    }

private:
    static constexpr const number* none = nullptr;
    // Rows of every (token, choice) pair, grouped by expert.
    struct buffers {
        number* inputs;
        number* rows;
        number* ranks;
    };
    buffers lay_out_scratch(step_memory& from, std::size_t tokens) const noexcept {
        const std::size_t pairs = tokens * choices_;
        number* const inputs = from.take<number>(pairs * inputs_);
        number* const rows = from.take<number>(pairs * width_);
        return {inputs, rows, from.take<number>(pairs * rank())};
    }
    buffers from(const buffers& all, std::size_t pair) const noexcept {
        return {all.inputs + pair * inputs_, all.rows + pair * width_, all.ranks + pair * rank()};
    }
    // Scratch bytes for the products of one expert, which has at most all tokens.
    [[nodiscard]] std::size_t product_bytes(std::size_t tokens) const noexcept {
        const std::size_t r = rank();
        return std::max(products_.bytes_both_ways(tokens, r, inputs_, 1),
                        products_.bytes_both_ways(tokens, width_, r, 1));
    }
    // Calls visit(call, expert, first pair, pairs, memory) for each expert that has pairs. One worker per expert: its
    // products are too small to be split.
    template <class Visit>
    void each_expert(const call_type& call, const tokens_type& at, const step_memory& scratch,
                     const Visit& visit) const {
        call_type alone = call;
        alone.execute = serially;
        alone.workers = 1;
        std::atomic<std::size_t> next{0};
        const auto work = [&](std::size_t worker) {
            std::byte* const memory = scratch.rest() + worker * product_bytes(call.tokens);
            for (std::size_t e = next++; e < experts(); e = next++)
                if (const std::size_t n = at.begin[e + 1] - at.begin[e]; n > 0)
                    visit(alone, e, at.begin[e], n, memory);
        };
        call.execute(std::min(call.workers, experts()), task_ref(work));
    }
    [[nodiscard]] std::size_t experts() const noexcept { return a_->given.shape[0]; }
    void weigh(std::size_t n, const number* ranks, const number* weights, number* to) const noexcept {
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t k = 0; k < rank(); ++k) to[i * rank() + k] = weights[i] * ranks[i * rank() + k];
    }
    [[nodiscard]] std::size_t rank() const noexcept { return a_->given.shape[1]; }
    [[nodiscard]] const number* a(std::size_t e) const noexcept {
        return a_->values() + e * rank() * inputs_;
    }
    [[nodiscard]] const number* b(std::size_t e) const noexcept { return b_->values() + e * width_ * rank(); }

    const parameter<number>* a_;
    const parameter<number>* b_;
    std::size_t choices_;
    std::size_t inputs_;
    std::size_t width_;
    product_functions<number> products_;
};

}  // namespace train_detail

TIFFIN_END
