// Sources whose rows are not a formula, forward and back: chains, blocks on other rows, delays, sums of blocks.
#pragma once

#include <tiffin/grammar/slots.hpp>
#include <tiffin/train/trained_rows.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace train_detail {

// Parts one after the other, each reading the rows of the last.
template <class M, chained_source S>
class chain_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;
    static constexpr std::size_t count = part_count<S>;

public:
    chain_rows(const S& source, const bound_node& bound, const engine_detail::source_sizes& sizes,
               training_preparation<number>& how) {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            std::size_t input = sizes.inputs;
            ((widths_[I] = bound.parts[I].width,
              parts_[I] =
                  make_trained_rows<M>(std::get<I>(source.parts()), bound.parts[I],
                                       {widths_[I], std::exchange(input, widths_[I]), sizes.d_model}, how)),
             ...);
        }
        (part_indices<S>{});
    }
    void keep(step_memory& kept, std::size_t tokens) const override {
        lay_out(kept, tokens);
        for (const auto& part : parts_) part->keep(kept, tokens);
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const override {
        step_memory areas;
        std::size_t most = 0;
        for (std::size_t i = 0; i + 1 < count; ++i) areas.take<number>(tokens * widths_[i]);
        for (const auto& part : parts_) most = std::max(most, part->scratch_bytes(tokens, workers));
        return areas.used() + most;
    }
    void forward(const call_type& call, const number* x, number* y, step_memory& kept,
                 step_memory scratch) const override {
        const memory at = lay_out(kept, call.tokens);
        for (std::size_t i = 0; i < count; ++i) {
            at.begin[i] = kept.used();
            parts_[i]->forward(call, i == 0 ? x : at.rows[i - 1], i + 1 == count ? y : at.rows[i], kept,
                               scratch);
        }
        at.begin[count] = kept.used();
    }
    void backward(const call_type& call, const number* x, const number* dy, number* dx, step_memory& kept,
                  step_memory scratch) const override {
        const memory at = lay_out(kept, call.tokens);
        std::array<number*, count> d{};
        for (std::size_t i = 0; i + 1 < count; ++i) d[i] = scratch.take<number>(call.tokens * widths_[i]);
        for (std::size_t i = count; i-- > 0;) {
            kept.move_to(at.begin[i]);
            if (i > 0) std::fill_n(d[i - 1], call.tokens * widths_[i - 1], number(0));
            parts_[i]->backward(call, i == 0 ? x : at.rows[i - 1], i + 1 == count ? dy : d[i],
                                i == 0 ? dx : d[i - 1], kept, scratch);
        }
        kept.move_to(at.begin[count]);
    }

private:
    struct memory {
        std::array<number*, count> rows{};
        std::size_t* begin;  // (count + 1): where the memory of each part begins
    };
    memory lay_out(step_memory& kept, std::size_t tokens) const {
        memory at{{}, kept.take<std::size_t>(count + 1)};
        for (std::size_t i = 0; i + 1 < count; ++i) at.rows[i] = kept.take<number>(tokens * widths_[i]);
        return at;
    }
    std::array<std::size_t, count> widths_{};
    std::array<std::unique_ptr<const trained_rows<number>>, count> parts_{};
};

// The residual in x's place.
template <class M, source_policy S>
class residual_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    residual_rows(const S& source, const bound_node& bound, const engine_detail::source_sizes& sizes,
                  training_preparation<number>& how)
        : part_(make_trained_rows<M>(std::get<0>(source.parts()), bound.parts[0],
                                     {sizes.outputs, sizes.d_model, sizes.d_model}, how)) {}
    void keep(step_memory& kept, std::size_t tokens) const override { part_->keep(kept, tokens); }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const override {
        return part_->scratch_bytes(tokens, workers);
    }
    void forward(const call_type& call, const number*, number* y, step_memory& kept,
                 step_memory scratch) const override {
        part_->forward(call, call.residual, y, kept, scratch);
    }
    void backward(const call_type& call, const number*, const number* dy, number*, step_memory& kept,
                  step_memory scratch) const override {
        part_->backward(call, call.residual, dy, call.d_residual, kept, scratch);
    }

private:
    std::unique_ptr<const trained_rows<number>> part_;
};

// Rows for a later layer. What forward sends on, backward is sent back: the layers are visited in reverse, and each
// finds in the same place the gradient that the layer it had sent to has left.
template <class M, source_policy S>
class delayed_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    delayed_rows(const S& source, const bound_node& bound, const engine_detail::source_sizes& sizes,
                 training_preparation<number>& how)
        : width_(sizes.outputs),
          part_(make_trained_rows<M>(std::get<0>(source.parts()), bound.parts[0], sizes, how)) {}
    void keep(step_memory& kept, std::size_t tokens) const override { part_->keep(kept, tokens); }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const override {
        step_memory areas;
        areas.take<number>(tokens * width_);
        return areas.used() + part_->scratch_bytes(tokens, workers);
    }
    void forward(const call_type& call, const number* x, number* y, step_memory& kept,
                 step_memory scratch) const override {
        number* const sent = scratch.take<number>(call.tokens * width_);
        part_->forward(call, x, sent, kept, scratch);
        exchange(call, sent, y);
    }
    void backward(const call_type& call, const number* x, const number* dy, number* dx, step_memory& kept,
                  step_memory scratch) const override {
        number* const d_sent = scratch.take<number>(call.tokens * width_);
        exchange(call, dy, d_sent);
        part_->backward(call, x, d_sent, dx, kept, scratch);
    }

private:
    void exchange(const call_type& call, const number* left, number* taken) const {
        const std::size_t numbers = call.tokens * width_;
        if (call.carried_is_due)
            std::copy_n(call.carried, numbers, taken);
        else
            std::fill_n(taken, numbers, number(0));
        std::copy_n(left, numbers, call.carried);
    }
    std::size_t width_;
    std::unique_ptr<const trained_rows<number>> part_;
};

// The sum of as many blocks as there are.
template <class M, source_policy S>
class repeated_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    repeated_rows(const S& source, const bound_node& bound, const engine_detail::source_sizes& sizes,
                  training_preparation<number>& how)
        : width_(sizes.outputs) {
        for (std::size_t i = 0; i < bound.parts.size(); ++i)
            parts_.push_back(make_trained_rows<M>(source.repeated(i), bound.parts[i], sizes, how));
    }
    void keep(step_memory& kept, std::size_t tokens) const override {
        for (const auto& part : parts_) part->keep(kept, tokens);
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const override {
        step_memory areas;
        areas.take<number>(tokens * width_);
        std::size_t most = 0;
        for (const auto& part : parts_) most = std::max(most, part->scratch_bytes(tokens, workers));
        return areas.used() + most;
    }
    void forward(const call_type& call, const number* x, number* y, step_memory& kept,
                 step_memory scratch) const override {
        number* const one = scratch.take<number>(call.tokens * width_);
        for (std::size_t i = 0; i < parts_.size(); ++i) {
            parts_[i]->forward(call, x, i == 0 ? y : one, kept, scratch);
            for (std::size_t j = 0; i > 0 && j < call.tokens * width_; ++j) y[j] = y[j] + one[j];
        }
    }
    void backward(const call_type& call, const number* x, const number* dy, number* dx, step_memory& kept,
                  step_memory scratch) const override {
        for (const auto& part : parts_) part->backward(call, x, dy, dx, kept, scratch);
    }

private:
    std::size_t width_;
    std::vector<std::unique_ptr<const trained_rows<number>>> parts_;
};

}  // namespace train_detail

TIFFIN_END
