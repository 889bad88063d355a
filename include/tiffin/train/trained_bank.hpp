// A bank of low-rank matrices, forward and back: tokens grouped by the expert that they chose.
#pragma once

#include <tiffin/train/trained_router.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

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
                 std::size_t inputs, std::size_t width)
        : a_(a), b_(b), choices_(choices), inputs_(inputs), width_(width) {}

    [[nodiscard]] bool is_given() const noexcept { return a_->is_given(); }
    // z of every pair, by expert.
    [[nodiscard]] number* lay_out(step_memory& kept, std::size_t tokens) const noexcept {
        return kept.take<number>(tokens * choices_ * rank());
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        step_memory areas;
        lay_out_scratch(areas, tokens);
        const std::size_t r = rank();
        return areas.used() + std::max({M::multiply_bytes(tokens, r, inputs_, workers),
                                        M::multiply_bytes(tokens, width_, r, workers),
                                        M::multiply_bytes(tokens, r, width_, workers),
                                        M::multiply_bytes(width_, r, tokens, workers),
                                        M::multiply_bytes(r, inputs_, tokens, workers),
                                        M::multiply_bytes(tokens, inputs_, r, workers)});
    }
    void forward(const call_type& call, const number* x, const tokens_type& at, number* z, number* value,
                 step_memory scratch) const {
        const buffers room = lay_out_scratch(scratch, call.tokens);
        const std::size_t r = rank();
        std::fill_n(value, call.tokens * width_, number(0));
        each_expert(at, [&](std::size_t e, std::size_t first, std::size_t n) {
            number* const ranks = z + first * r;
            take_rows<M>(call, n, inputs_, x, at.tokens + first, static_cast<const number*>(nullptr),
                         room.inputs);
            M::multiply(call, n, r, inputs_, {room.inputs, inputs_}, {a(e), inputs_}, ranks, false,
                        scratch.rest());
            weigh(n, ranks, at.weights + first, room.ranks);
            M::multiply(call, n, width_, r, {room.ranks, r}, {b(e), r}, room.rows, false, scratch.rest());
            add_rows<M>(call, n, width_, room.rows, at.tokens + first, value);
        });
    }
    // d_weights (pairs) += what the weights of the choices get.
    void backward(const call_type& call, const number* x, const tokens_type& at, const number* z,
                  const number* d_value, number* d_weights, number* dx, step_memory scratch) const {
        const buffers room = lay_out_scratch(scratch, call.tokens);
        const std::size_t r = rank();
        each_expert(at, [&](std::size_t e, std::size_t first, std::size_t n) {
            const number* const ranks = z + first * r;
            const number* const weights = at.weights + first;
            take_rows<M>(call, n, width_, d_value, at.tokens + first, static_cast<const number*>(nullptr),
                         room.rows);
            if (b_->gradient != nullptr) {
                weigh(n, ranks, weights, room.ranks);
                M::multiply(call, width_, r, n, {room.rows, width_, true}, {room.ranks, r, true},
                            b_->gradient + e * width_ * r, true, scratch.rest());
            }
            // Of w z, then of w and of z.
            M::multiply(call, n, r, width_, {room.rows, width_}, {b(e), r, true}, room.ranks, false,
                        scratch.rest());
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
                take_rows<M>(call, n, inputs_, x, at.tokens + first, static_cast<const number*>(nullptr),
                             room.inputs);
                M::multiply(call, r, inputs_, n, {room.ranks, r, true}, {room.inputs, inputs_, true},
                            a_->gradient + e * r * inputs_, true, scratch.rest());
            }
            if (dx != nullptr) {
                M::multiply(call, n, inputs_, r, {room.ranks, r}, {a(e), inputs_, true}, room.inputs, false,
                            scratch.rest());
                add_rows<M>(call, n, inputs_, room.inputs, at.tokens + first, dx);
            }
        });
    }

private:
    struct buffers {
        number* inputs;
        number* rows;
        number* ranks;
    };
    buffers lay_out_scratch(step_memory& from, std::size_t tokens) const noexcept {
        number* const inputs = from.take<number>(tokens * inputs_);
        number* const rows = from.take<number>(tokens * width_);
        return {inputs, rows, from.take<number>(tokens * rank())};
    }
    template <class Visit>
    void each_expert(const tokens_type& at, const Visit& visit) const {
        for (std::size_t e = 0; e < a_->given.shape[0]; ++e)
            if (const std::size_t n = at.begin[e + 1] - at.begin[e]; n > 0) visit(e, at.begin[e], n);
    }
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
};

}  // namespace train_detail

TIFFIN_END
