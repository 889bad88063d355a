// Blocks made of blocks, wherever they run.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/engine/engine_of.hpp>
#include <tiffin/router/selection.hpp>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace engine_detail {

// Rows of y that a block computes in several steps: y itself where it can hold what is not complete,
// else rows of the workspace that are put into y at the end.
template <class Target>
class pending_rows {
    using call_type = typename Target::call;
    using areas_type = typename Target::areas;

public:
    static std::size_t bytes(std::size_t tokens, std::size_t d_model) noexcept {
        areas_type areas;
        areas.template take<float>(tokens * d_model);
        return areas.used();
    }
    pending_rows(const call_type& call, std::size_t d_model, areas_type& areas) noexcept
        : own_(areas.template take<float>(Target::tokens(call) * d_model)),
          aside_(!Target::takes_parts(call.to)),
          to_(aside_ ? Target::rows_in(own_, Target::tokens(call), d_model) : call.to) {}
    [[nodiscard]] const auto& to() const noexcept { return to_; }
    void deliver(const call_type& call, std::size_t d_model) const {
        if (aside_) Target::put_rows(call, own_, d_model);
    }

private:
    float* own_;
    bool aside_;
    decltype(call_type::to) to_;
};

// Branches one after the other, each added to what the ones before it left. `Engines`: a tuple where
// their kinds are known, else a vector.
template <class Target, class Engines>
class branches_engine {
public:
    branches_engine(Engines branches, const binding& bound)
        : d_model_(bound.d_model), branches_(std::move(branches)) {
        for (const binding& part : bound.parts) choices_.push_back(part.choices);
    }

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        std::size_t most = 0;
        for_engines(branches_,
                    [&](const auto& b) { most = std::max(most, b.workspace_bytes(tokens, workers)); });
        return pending_rows<Target>::bytes(tokens, d_model_) + most;
    }
    void run(const typename Target::call& call) const {
        typename Target::areas areas(call.workspace);
        const pending_rows<Target> rows(call, d_model_, areas);
        typename Target::call inner = call;
        inner.to = rows.to();
        inner.workspace = areas.rest();
        choice<float>* routes = call.routes;
        std::size_t i = 0;
        for_engines(branches_, [&](const auto& branch) {
            inner.routes = choices_[i++] > 0 ? std::exchange(routes, nullptr) : nullptr;
            branch.run(inner);
            inner.to.add = true;
        });
        rows.deliver(call, d_model_);
    }

private:
    std::size_t d_model_;
    Engines branches_;
    std::vector<std::size_t> choices_;
};

template <class Target, class... Blocks>
class parallel_engine : public branches_engine<Target, std::tuple<engine_of<Target, Blocks>...>> {
    using engines = std::tuple<engine_of<Target, Blocks>...>;

public:
    template <class... Preparation>
    parallel_engine(const parallel<Blocks...>& block, const binding& bound, Preparation&... how)
        : parallel_engine(std::index_sequence_for<Blocks...>{}, block, bound, how...) {}

private:
    template <std::size_t... I, class... Preparation>
    parallel_engine(std::index_sequence<I...>, const parallel<Blocks...>& block, const binding& bound,
                    Preparation&... how)
        : branches_engine<Target, engines>(
              engines{engine_of<Target, Blocks>(std::get<I>(block.branches), bound.parts[I], how...)...},
              bound) {}
};

template <class Target, class... Blocks>
struct engine_choice<Target, parallel<Blocks...>> {
    using type = parallel_engine<Target, Blocks...>;
};

template <class Target, class Block>
class residual_engine {
public:
    template <class... Preparation>
    residual_engine(const on_residual<Block>& block, const binding& bound, Preparation&... how)
        : inner_(block.block, bound.parts[0], how...) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return inner_.workspace_bytes(tokens, workers);
    }
    void run(const typename Target::call& call) const {
        typename Target::call inner = call;
        inner.x = call.residual;
        inner_.run(inner);
    }

private:
    engine_of<Target, Block> inner_;
};

template <class Target, class Block>
struct engine_choice<Target, on_residual<Block>> {
    using type = residual_engine<Target, Block>;
};

// The result of this call is left for a later one, that of an earlier one is delivered.
template <class Target, class Block>
class delayed_engine {
public:
    template <std::size_t Layers, class... Preparation>
    delayed_engine(const delayed<Block, Layers>& block, const binding& bound, Preparation&... how)
        : d_model_(bound.d_model), inner_(block.block, bound.parts[0], how...) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return pending_rows<Target>::bytes(tokens, d_model_) + inner_.workspace_bytes(tokens, workers);
    }
    void run(const typename Target::call& call) const {
        typename Target::areas areas(call.workspace);
        const std::size_t tokens = Target::tokens(call);
        auto* const sent = areas.template take<float>(tokens * d_model_);
        typename Target::call inner = call;
        inner.to = Target::rows_in(sent, tokens, d_model_);
        inner.workspace = areas.rest();
        inner_.run(inner);
        Target::exchange_rows(call, sent, d_model_);
    }

private:
    std::size_t d_model_;
    engine_of<Target, Block> inner_;
};

template <class Target, class Block, std::size_t Layers>
struct engine_choice<Target, delayed<Block, Layers>> {
    using type = delayed_engine<Target, Block>;
};

}  // namespace engine_detail

TIFFIN_END
