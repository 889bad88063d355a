// Blocks made of blocks, on any machine.
#pragma once

#include <tiffin/backend/fused/ffn_engine.hpp>
#include <tiffin/backend/fused/for_engines.hpp>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace fused_detail {

// A block whose kind is known only at run time brings its engine.
template <class Machine, class Block>
    requires requires {
        typename Block::template engine<Machine>;
    }
struct engine_choice<Machine, Block> {
    using type = typename Block::template engine<Machine>;
};

// Rows of y that a block computes in several steps: y itself where it can hold what is not complete,
// else rows of the workspace that are put into y at the end.
class pending_rows {
public:
    static std::size_t bytes(std::size_t tokens, std::size_t d_model) noexcept {
        arena areas;
        areas.take<float>(tokens * d_model);
        return areas.used();
    }
    pending_rows(const call_arguments& call, std::size_t d_model, arena& areas) noexcept
        : own_(areas.take<float>(call.tokens * d_model)), aside_(!call.to.is_plain()), to_(call.to) {
        if (aside_) to_ = {{own_, call.tokens, d_model}};
    }
    [[nodiscard]] const output_rows& to() const noexcept { return to_; }
    template <class Machine>
    void deliver(const call_arguments& call, std::size_t d_model) const {
        if (aside_)
            put_rows<Machine>(call, d_model, [&](std::size_t t, std::size_t j, std::size_t n) {
                return Machine::load(to_.row(t) + j, n);
            });
    }

private:
    float* own_;
    bool aside_;
    output_rows to_;
};

// Branches one after the other, each added to what the ones before it left. `Engines`: a tuple where
// their kinds are known, else a vector.
template <class Machine, class Engines>
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
        return pending_rows::bytes(tokens, d_model_) + most;
    }
    void run(const call_arguments& call) const {
        arena areas(call.workspace);
        const pending_rows rows(call, d_model_, areas);
        call_arguments inner = call;
        inner.to = rows.to();
        inner.workspace = areas.rest();
        choice<float>* routes = call.routes;
        std::size_t i = 0;
        for_engines(branches_, [&](const auto& branch) {
            inner.routes = choices_[i++] > 0 ? std::exchange(routes, nullptr) : nullptr;
            branch.run(inner);
            inner.to.add = true;
        });
        rows.template deliver<Machine>(call, d_model_);
    }

private:
    std::size_t d_model_;
    Engines branches_;
    std::vector<std::size_t> choices_;
};

template <class Machine, class... Blocks>
class parallel_engine : public branches_engine<Machine, std::tuple<engine_of<Machine, Blocks>...>> {
    using engines = std::tuple<engine_of<Machine, Blocks>...>;

public:
    parallel_engine(const parallel<Blocks...>& block, const binding& bound)
        : parallel_engine(block, bound, std::index_sequence_for<Blocks...>{}) {}

private:
    template <std::size_t... I>
    parallel_engine(const parallel<Blocks...>& block, const binding& bound, std::index_sequence<I...>)
        : branches_engine<Machine, engines>(
              engines(engine_of<Machine, Blocks>(std::get<I>(block.branches), bound.parts[I])...), bound) {}
};

template <class Machine, class... Blocks>
struct engine_choice<Machine, parallel<Blocks...>> {
    using type = parallel_engine<Machine, Blocks...>;
};

template <class Machine, class Block>
class residual_engine {
public:
    residual_engine(const on_residual<Block>& block, const binding& bound)
        : inner_(block.block, bound.parts[0]) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return inner_.workspace_bytes(tokens, workers);
    }
    void run(const call_arguments& call) const {
        call_arguments inner = call;
        inner.x = call.residual;
        inner_.run(inner);
    }

private:
    engine_of<Machine, Block> inner_;
};

template <class Machine, class Block>
struct engine_choice<Machine, on_residual<Block>> {
    using type = residual_engine<Machine, Block>;
};

// The result of this call is left for a later one, that of an earlier one is delivered.
template <class Machine, class Block>
class delayed_engine {
public:
    template <std::size_t Layers>
    delayed_engine(const delayed<Block, Layers>& block, const binding& bound)
        : d_model_(bound.d_model), inner_(block.block, bound.parts[0]) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return pending_rows::bytes(tokens, d_model_) + inner_.workspace_bytes(tokens, workers);
    }
    void run(const call_arguments& call) const {
        arena areas(call.workspace);
        float* const sent = areas.take<float>(call.tokens * d_model_);
        call_arguments inner = call;
        inner.to = {{sent, call.tokens, d_model_}};
        inner.workspace = areas.rest();
        inner_.run(inner);
        put_rows<Machine>(call, d_model_, [&](std::size_t t, std::size_t j, std::size_t n) {
            float* const slot = call.carried.row(call.row(t)) + j;
            const typename Machine::reg taken =
                call.carried_is_due ? Machine::load(slot, n) : typename Machine::reg(0.0f);
            Machine::store(Machine::load(sent + t * d_model_ + j, n), slot, n);
            return taken;
        });
    }

private:
    std::size_t d_model_;
    engine_of<Machine, Block> inner_;
};

template <class Machine, class Block, std::size_t Layers>
struct engine_choice<Machine, delayed<Block, Layers>> {
    using type = delayed_engine<Machine, Block>;
};

// A source that is all of a block.
template <class Machine, class Source>
class source_engine {
    using reg = typename Machine::reg;

public:
    source_engine(const source_block<Source>& block, const binding& bound)
        : d_model_(bound.d_model),
          stage_(block.source, bound.tensors, {bound.d_model, bound.d_model, bound.formats}) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        areas.take<float>(Machine::input_numbers(tokens, d_model_));
        return areas.used() + stage_.workspace_bytes(tokens, workers);
    }
    void run(const call_arguments& call) const {
        arena areas(call.workspace);
        float* const x = areas.take<float>(Machine::input_numbers(call.tokens, d_model_));
        stage_.run(call, Machine::inputs(call, x), areas.rest(), call.routes,
                   [&](std::size_t t, std::size_t feature, const reg& v, std::size_t n) {
                       put<Machine>(call.to, t, feature, v, n);
                   });
    }

private:
    std::size_t d_model_;
    stage<Machine, Source> stage_;
};

template <class Machine, class Source>
struct engine_choice<Machine, source_block<Source>> {
    using type = source_engine<Machine, Source>;
};

}  // namespace fused_detail

TIFFIN_END
