// How a stage is built from a source of a plan, and how it runs.
#pragma once

#include <tiffin/cpu/chain.hpp>
#include <tiffin/cpu/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

// Precomputes a source's rows: stores them in the per-token state for a formula.
template <class Machine>
class precomputed_rows final : public token_step<Machine> {
public:
    precomputed_rows(std::unique_ptr<const source_rows<Machine>> rows, std::size_t state,
                     std::size_t width) noexcept
        : rows_(std::move(rows)), state_(state), width_(width) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                              std::size_t workers) const noexcept override {
        return rows_->workspace_bytes(tokens, workers);
    }
    void run(const formula_call<Machine>& of, std::byte* memory) const override {
        rows_->run(of.call, of.in, memory, {{of.state + state_, of.call.tokens, width_, of.state_numbers}});
    }

private:
    std::unique_ptr<const source_rows<Machine>> rows_;
    std::size_t state_, width_;
};

template <class Machine>
class stage<Machine>::chain_epilogue final : public block_sink {
public:
    chain_epilogue(const block_formula<Machine>& formula, const formula_call<Machine>& of,
                   const block_sink& to) noexcept
        : formula_(formula), of_(of), to_(to) {}
    void put(const value_block& v) const noexcept override {
        formula_.run(of_, {v.token, v.tokens, v.feature, v.features}, {nullptr, &v}, to_);
    }
    void prefetch(std::size_t token, std::size_t tokens, std::size_t feature,
                  std::size_t features) const noexcept override {
        formula_.prefetch(of_, {token, tokens, feature, features});
        to_.prefetch(token, tokens, feature, features);
    }

private:
    const block_formula<Machine>& formula_;
    const formula_call<Machine>& of_;
    const block_sink& to_;
};

template <class Machine>
stage<Machine>::stage(const plan_node& node, const bound_node& bound, const source_sizes& sizes,
                      const preparation& how)
    : outputs_(sizes.outputs), last_chain_(nullptr) {
    std::vector<const tensor_view*> weights;
    find_weights(node, bound, weights);
    if (weights.empty()) last_chain_ = last_chain_of(node);
    std::vector<dtype> types;
    for (const tensor_view* w : weights) types.push_back(chosen_by(*w));
    if (!weights.empty())
        products_.emplace(sizes.outputs, sizes.inputs, weights.size(), formats_of(how.formats, types));
    std::uint32_t sums = 0;
    keep(node, bound, sizes, sums, how);
    for (std::size_t i = 0; i < weights.size(); ++i) {
        products_->pack(i, *weights[i], how);
        how.done(*weights[i]);
    }
    formula_.products = weights.size();
    if (&node != last_chain_) formula_.end_with(tensors_.add_ops(node, last_chain_, formula_));
    tensors_.forget_nodes();
    last_chain_ = nullptr;
}

// Collects the weights in the order in which keep() visits them.
template <class Machine>
void stage<Machine>::find_weights(const plan_node& node, const bound_node& bound,
                                  std::vector<const tensor_view*>& to) {
    if (!detail::parts_computed_first(*node.kind))
        for (std::size_t i = 0; i < node.parts.size(); ++i) find_weights(node.parts[i], bound.parts[i], to);
    for (std::size_t i = 0; i < bound.tensors.size(); ++i)
        if (node.kind->tensors[i].kind == tensor_kind::projection) to.push_back(&bound.tensors[i]);
}

template <class Machine>
void stage<Machine>::keep(const plan_node& node, const bound_node& bound, const source_sizes& sizes,
                          std::uint32_t& sums, const preparation& how) {
    using detail::node_role;
    const node_role role = node.kind->role;
    if (&node == last_chain_) {
        chain_ = std::make_unique<const chain<Machine>>(node, bound, sizes, how);
        return;
    }
    node_state state;
    const bool apart = detail::parts_computed_first(*node.kind);
    if (apart)
        role == node_role::row_norm ? precompute(node.parts[0], bound.parts[0], sizes, state, how)
                                    : precompute(node, bound, sizes, state, how);
    else
        for (std::size_t i = 0; i < node.parts.size(); ++i)
            keep(node.parts[i], bound.parts[i], sizes, sums, how);
    if (role == node_role::routed) {
        tensors_.state_of(node) = state;
        steps_.push_back(functions<Machine>(node).route(node, bound, sizes, how, tensors_));
        state = tensors_.state_of(node);
    }
    const bool scales = role == node_role::row_norm || role == node_role::row_dot;
    if (scales) state.scale = tensors_.take_state(1);
    reads_input_ = reads_input_ || node.kind->has(tensor_kind::input_row);
    tensors_.state_of(node) = state;
    tensors_.keep(node, bound, outputs_, sums, how);
    if (!scales) return;
    row_factor& made =
        scales_.emplace_back(row_factor{&ops<Machine>(node), node.source, {}, {}, state.row, state.scale});
    const auto add_ops = [&](const plan_node& part, block_formula<Machine>& to) {
        to.end_with(tensors_.add_ops(part, nullptr, to));
    };
    if (!state.has_row) add_ops(node.parts[0], made.one);
    if (role == node_role::row_dot) add_ops(node.parts[1], made.other.emplace());
}

template <class Machine>
void stage<Machine>::precompute(const plan_node& node, const bound_node& bound, const source_sizes& sizes,
                                node_state& state, const preparation& how) {
    state.has_row = true;
    state.row = tensors_.take_state(outputs_);
    steps_.push_back(std::make_unique<const precomputed_rows<Machine>>(
        make_rows<Machine>(node, bound, sizes, how), state.row, outputs_));
}

template <class Machine>
const typename Machine::products* stage<Machine>::multiplies_input() const noexcept {
    if (!steps_.empty() || reads_input_) return nullptr;
    return chain_ ? chain_->multiplies_input() : ends_in();
}

template <class Machine>
std::size_t stage<Machine>::workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
    arena areas;
    lay_out(areas, tokens);
    std::size_t most = products_ ? products_->scratch_numbers(tokens, workers) * sizeof(float) : 0;
    for (const auto& step : steps_) most = std::max(most, step->workspace_bytes(tokens, workers));
    if (chain_) most = std::max(most, chain_->workspace_bytes(tokens, workers));
    areas.template take<std::byte>(most);
    return areas.used();
}

template <class Machine>
void stage<Machine>::run(const call_arguments& call, const activations& in, std::byte* memory,
                         const block_sink& to) const {
    arena areas(memory);
    const formula_call<Machine> of{call, in, lay_out(areas, call.tokens), tensors_.state_numbers()};
    std::byte* const work = areas.rest();
    for (const auto& step : steps_) step->run(of, work);
    if (!chain_ && !products_) return evaluate_rows(of, to);
    if (!scales_.empty()) for_tokens(call, outputs_, [&](std::size_t t) noexcept { scale_row(of, t); });
    if (products_) {
        const auto epilogue = [&](std::size_t token, std::size_t tokens, std::size_t feature,
                                  std::size_t features, const product_sums& sums) noexcept {
            formula_.run(of, {token, tokens, feature, features}, {&sums, nullptr}, to);
        };
        products_->run(in, reinterpret_cast<float*>(work), call.workers, call.execute, epilogue);
    } else if (formula_.is_empty()) {
        chain_->run(call, in, work, to);
    } else {
        chain_->run(call, in, work, chain_epilogue(formula_, of, to));
    }
}

// Evaluates the formula of a tree without products: the row scales of some tokens, then their values.
template <class Machine>
void stage<Machine>::evaluate_rows(const formula_call<Machine>& of, const block_sink& to) const {
    for_token_ranges(of.call, outputs_, [&](std::size_t first, std::size_t end) noexcept {
        const std::size_t at_once =
            end - first > 1 ? finished_at_once : std::min(to.features_at_once(), formula_.features_at_once());
        constexpr std::size_t few = 8;  // tokens whose rows fit a first-level cache
        for (std::size_t t = first; t < end; t += few) {
            const std::size_t tokens = std::min(few, end - t);
            for (std::size_t i = 0; i < tokens && !scales_.empty(); ++i) scale_row(of, t + i);
            for (std::size_t j = 0; j < outputs_; j += at_once)
                formula_.run(of, {t, tokens, j, std::min(at_once, outputs_ - j)}, {}, to);
        }
    });
}

template <class Machine>
void stage<Machine>::scale_row(const formula_call<Machine>& of, std::size_t t) const noexcept {
    alignas(64) float one[finished_at_once], other[finished_at_once];
    for (const row_factor& f : scales_) {
        typename Machine::reg sums(0.0f);
        for (std::size_t j = 0; j < outputs_; j += finished_at_once) {
            const std::size_t features = std::min(finished_at_once, outputs_ - j);
            const float* const first = f.one.is_empty() ? of.state_of(t) + f.row + j : one;
            const float* const second = f.other ? other : first;
            if (!f.one.is_empty()) f.one.run(of, {t, 1, j, features}, {}, memory_sink(one));
            if (f.other) f.other->run(of, {t, 1, j, features}, {}, memory_sink(other));
            for (std::size_t i = 0; i < features; i += Machine::lane_count)
                sums =
                    Machine::add_product(Machine::load_aligned(first + i), Machine::load_aligned(second + i),
                                         std::min(Machine::lane_count, features - i), sums);
        }
        of.state[t * of.state_numbers + f.state] =
            f.ops->scale(f.source, Machine::sum(sums), static_cast<float>(outputs_));
    }
}

}  // namespace cpu_detail

TIFFIN_END
