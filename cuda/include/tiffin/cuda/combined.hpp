// Blocks made of blocks, on the device.
#pragma once

#include <tiffin/backend/fused/for_engines.hpp>
#include <tiffin/cuda/ffn_engine.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace cuda_detail {

// Rows of f32 put where a call wants them.
template <codec Format>
void put_rows(const device_call<Format>& call, const float* rows, std::size_t width,
              const device_rows<Format>& to) {
    write_values<Format>(*call.out, row_value{rows, width}, call.tokens, width,
                         finish<Format, no_modulator::view>{to, {}});
}

// Rows of y that a block computes in several steps: y itself where it holds f32, else rows of the
// workspace that are put into y at the end.
template <codec Format>
class pending_rows {
public:
    pending_rows(const device_call<Format>& call, std::size_t d_model, device_arena& areas) noexcept
        : own_(areas.take<float>(call.tokens.most * d_model)), to_(call.to) {
        if (!call.to.wide && !std::same_as<Format, f32>) to_ = {own_, d_model, true};
    }
    static std::size_t bytes(std::size_t tokens, std::size_t d_model) noexcept {
        device_arena areas;
        areas.take<float>(tokens * d_model);
        return areas.used();
    }
    [[nodiscard]] const device_rows<Format>& to() const noexcept { return to_; }
    void deliver(const device_call<Format>& call, std::size_t d_model) const {
        if (to_.data == own_) put_rows(call, own_, d_model, call.to);
    }

private:
    float* own_;
    device_rows<Format> to_;
};

// A block whose kind is known only at run time brings its engine.
template <codec Format, class Block>
    requires requires {
        typename Block::template engine<Format>;
    }
struct engine_choice<Format, Block> {
    using type = typename Block::template engine<Format>;
};

// Branches one after the other, each added to what the ones before it left. `Engines`: a tuple where their
// kinds are known, else a vector.
template <codec Format, class Engines>
class branches_engine {
public:
    branches_engine(Engines branches, const binding& bound)
        : d_model_(bound.d_model), branches_(std::move(branches)) {
        for (const binding& part : bound.parts) choices_.push_back(part.choices);
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        std::size_t most = 0;
        fused_detail::for_engines(
            branches_, [&](const auto& b) { most = std::max(most, b.workspace_bytes(tokens, workers)); });
        return pending_rows<Format>::bytes(tokens, d_model_) + most;
    }
    void run(const device_call<Format>& call) const {
        device_arena areas(call.workspace);
        const pending_rows<Format> rows(call, d_model_, areas);
        device_call<Format> inner = call;
        inner.to = rows.to();
        inner.workspace = areas.rest();
        choice<float>* routes = call.routes;
        std::size_t i = 0;
        fused_detail::for_engines(branches_, [&](const auto& branch) {
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

template <codec Format, class... Blocks>
class parallel_engine : public branches_engine<Format, std::tuple<engine_of<Format, Blocks>...>> {
    using engines = std::tuple<engine_of<Format, Blocks>...>;

public:
    parallel_engine(const parallel<Blocks...>& block, const binding& bound, uploads& up)
        : parallel_engine(block, bound, up, std::index_sequence_for<Blocks...>{}) {}

private:
    template <std::size_t... I>
    parallel_engine(const parallel<Blocks...>& block, const binding& bound, uploads& up,
                    std::index_sequence<I...>)
        : branches_engine<Format, engines>(
              engines{engine_of<Format, Blocks>(std::get<I>(block.branches), bound.parts[I], up)...}, bound) {
    }
};

template <codec Format, class... Blocks>
struct engine_choice<Format, parallel<Blocks...>> {
    using type = parallel_engine<Format, Blocks...>;
};

template <codec Format, class Block>
class residual_engine {
public:
    residual_engine(const on_residual<Block>& block, const binding& bound, uploads& up)
        : inner_(block.block, bound.parts[0], up) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return inner_.workspace_bytes(tokens, workers);
    }
    void run(const device_call<Format>& call) const {
        device_call<Format> inner = call;
        inner.x = call.residual;
        inner_.run(inner);
    }

private:
    engine_of<Format, Block> inner_;
};

template <codec Format, class Block>
struct engine_choice<Format, on_residual<Block>> {
    using type = residual_engine<Format, Block>;
};

// What an earlier call left is delivered, what this one sends takes its place.
template <codec Format>
struct exchanged_value {
    const float* sent;
    std::size_t width;
    matrix_view<float> carried;
    bool is_due;
    token_range tokens;

    template <std::size_t N>
    __device__ pack<N> at(std::size_t t, std::size_t feature, std::size_t count) const {
        float* const slot = carried.row(tokens.row(t)) + feature;
        const pack<N> taken = is_due ? load<f32, N>(slot, count) : pack<N>(0.0f);
        store<f32, N>(load<f32, N>(sent + t * width + feature, count), slot, count);
        return taken;
    }
};

template <codec Format, class Block>
class delayed_engine {
public:
    template <std::size_t Layers>
    delayed_engine(const delayed<Block, Layers>& block, const binding& bound, uploads& up)
        : d_model_(bound.d_model), inner_(block.block, bound.parts[0], up) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        return pending_rows<Format>::bytes(tokens, d_model_) + inner_.workspace_bytes(tokens, workers);
    }
    void run(const device_call<Format>& call) const {
        device_arena areas(call.workspace);
        auto* const sent = areas.take<float>(call.tokens.most * d_model_);
        device_call<Format> inner = call;
        inner.to = {sent, d_model_, true};
        inner.workspace = areas.rest();
        inner_.run(inner);
        write_values<Format>(
            *call.out,
            exchanged_value<Format>{sent, d_model_, call.carried, call.carried_is_due, call.tokens},
            call.tokens, d_model_, finish<Format, no_modulator::view>{call.to, {}});
    }

private:
    std::size_t d_model_;
    engine_of<Format, Block> inner_;
};

template <codec Format, class Block, std::size_t Layers>
struct engine_choice<Format, delayed<Block, Layers>> {
    using type = delayed_engine<Format, Block>;
};

// A source that is all of a block.
template <codec Format, class Source>
class source_engine {
    using storage = typename Format::storage;

public:
    source_engine(const source_block<Source>& block, const binding& bound, uploads& up)
        : d_model_(bound.d_model), stage_(block.source, bound.tensors, {bound.d_model, bound.d_model}, up) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t /*workers*/) const noexcept {
        device_arena areas;
        areas.take<storage>(tokens * d_model_);
        return areas.used() + stage_.bytes(tokens);
    }
    void run(const device_call<Format>& call) const {
        device_arena areas(call.workspace);
        auto* const x = areas.take<storage>(call.tokens.most * d_model_);
        stage_.run(call, inputs_of(call, x), areas.rest(), call.routes,
                   finish<Format, no_modulator::view>{call.to, {}});
    }

private:
    std::size_t d_model_;
    stage<Format, Source> stage_;
};

template <codec Format, class Source>
struct engine_choice<Format, source_block<Source>> {
    using type = source_engine<Format, Source>;
};

}  // namespace cuda_detail

TIFFIN_END
