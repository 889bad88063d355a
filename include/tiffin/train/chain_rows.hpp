// Sources that are not a formula, forward and backward: chains, blocks on the residual, delays, sums of blocks.
#pragma once

#include <tiffin/train/trained_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

TIFFIN_BEGIN

namespace train_detail {

// Sequential parts: each reads the rows of the previous one.
template <class M>
class chain_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    chain_rows(const plan_node& node, const bound_node& bound, const engine_detail::source_sizes& sizes,
               training_preparation<number>& how) {
        std::size_t inputs = sizes.inputs;
        for (std::size_t i = 0; i < node.parts.size(); ++i) {
            const std::size_t width = bound.parts[i].width;
            parts_.push_back(
                {make_trained_rows<M>(node.parts[i], bound.parts[i], {width, inputs, sizes.d_model}, how),
                 between_});
            if (i + 1 < node.parts.size()) between_ += width;
            inputs = width;
        }
    }
    void keep(step_memory& kept, std::size_t tokens) const override {
        lay_out(kept, tokens);
        for (const part& p : parts_) p.rows->keep(kept, tokens);
    }
    [[nodiscard]] std::size_t scratch_bytes(std::size_t tokens, std::size_t workers) const override {
        step_memory areas;
        areas.take<number>(tokens * between_);
        std::size_t most = 0;
        for (const part& p : parts_) most = std::max(most, p.rows->scratch_bytes(tokens, workers));
        return areas.used() + most;
    }
    void forward(const call_type& call, const number* x, number* y, step_memory& kept,
                 step_memory scratch) const override {
        const memory at = lay_out(kept, call.tokens);
        for (std::size_t i = 0; i < parts_.size(); ++i) {
            number* const to = i + 1 == parts_.size() ? y : at.rows + call.tokens * parts_[i].before;
            at.begin[i] = kept.used();
            parts_[i].rows->forward(call, x, to, kept, scratch);
            x = to;
        }
        at.begin[parts_.size()] = kept.used();
    }
    void backward(const call_type& call, const number* x, const number* dy, number* dx, step_memory& kept,
                  step_memory scratch) const override {
        const memory at = lay_out(kept, call.tokens);
        number* const d = scratch.take<number>(call.tokens * between_);
        std::fill_n(d, call.tokens * between_, number(0));
        for (std::size_t i = parts_.size(); i-- > 0;) {
            const std::size_t before = i > 0 ? call.tokens * parts_[i - 1].before : 0;
            kept.move_to(at.begin[i]);
            parts_[i].rows->backward(call, i > 0 ? at.rows + before : x, dy, i > 0 ? d + before : dx, kept,
                                     scratch);
            dy = d + before;
        }
        kept.move_to(at.begin[parts_.size()]);
    }

private:
    struct part {
        std::unique_ptr<const trained_rows<number>> rows;
        std::size_t before;  // total width of the rows of the parts before it
    };
    struct memory {
        number* rows;        // of all parts but the last
        std::size_t* begin;  // (parts + 1): where the memory of each part begins
    };
    memory lay_out(step_memory& kept, std::size_t tokens) const {
        number* const rows = kept.take<number>(tokens * between_);
        return {rows, kept.take<std::size_t>(parts_.size() + 1)};
    }
    std::vector<part> parts_;
    std::size_t between_ = 0;
};

// A part that reads the residual instead of x.
template <class M>
class residual_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    residual_rows(const plan_node& node, const bound_node& bound, const engine_detail::source_sizes& sizes,
                  training_preparation<number>& how)
        : part_(make_trained_rows<M>(node.parts[0], bound.parts[0],
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

// Rows for a later layer, by way of call.carried. Backward visits the layers in reverse: each reads from the same slot
// the gradient that the receiving layer has stored there.
template <class M>
class delayed_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    delayed_rows(const plan_node& node, const bound_node& bound, const engine_detail::source_sizes& sizes,
                 training_preparation<number>& how)
        : width_(sizes.outputs), part_(make_trained_rows<M>(node.parts[0], bound.parts[0], sizes, how)) {}
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

// The sum of the rows of repeated blocks.
template <class M>
class repeated_rows final : public trained_rows<typename M::number> {
    using number = typename M::number;
    using call_type = training_call<number>;

public:
    repeated_rows(const plan_node& node, const bound_node& bound, const engine_detail::source_sizes& sizes,
                  training_preparation<number>& how)
        : width_(sizes.outputs) {
        for (std::size_t i = 0; i < bound.parts.size(); ++i)
            parts_.push_back(make_trained_rows<M>(node.repeated_part(i), bound.parts[i], sizes, how));
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
