// The nodes of a source that are computed once a token: routed leaves (routed_step.hpp), norms of a row,
// chains.
#pragma once

#include <tiffin/cuda/routed_step.hpp>
#include <tiffin/source/tree.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace cuda_detail {

template <codec Format, source_policy Source>
class stage;

// A block of threads a token: the scale of a norm over the row of the source below it.
template <codec Format, source_policy Source, std::size_t First, row_normed_source Node>
struct scale_body {
    Node node;
    stage_view<Format, Source> view;
    std::size_t state;

    __device__ void operator()(const block& g, std::size_t t) const {
        if (!view.tokens.has(t)) return;
        constexpr std::size_t first = First + part_offset<Node, 0>(), numbers = access<Format>;
        float squares = 0;
        for (std::size_t j = g.rank() * numbers; j < view.outputs; j += g.size() * numbers) {
            const place<Format, Source, numbers> here{view, t, j, view.outputs - j, nullptr};
            const pack<numbers> v = evaluate<first>(std::get<0>(node.parts()), here);
            for (std::size_t i = 0; i < numbers && j + i < view.outputs; ++i)
                squares += v.lane[i] * v.lane[i];
        }
        squares = g.sum(squares);
        if (g.rank() == 0)
            view.state[t * view.state_numbers + state] =
                static_cast<float>(node.norm.scale(squares, static_cast<float>(view.outputs)));
    }
};

// State: one number, the scale.
template <codec Format, source_policy Source, std::size_t First, row_normed_source Node>
class norm_step {
public:
    norm_step(const Node& node, std::span<const tensor_view>, const stage_sizes&, uploads&) : node_(node) {}
    static constexpr std::size_t choices() noexcept { return 0; }
    static constexpr std::size_t state_numbers() noexcept { return 1; }
    static constexpr std::size_t bytes(std::size_t) noexcept { return 0; }
    template <std::size_t N>
    void describe(slot (&slots)[N], std::size_t state) noexcept {
        slots[First].state = state_ = state;
    }
    void run(const device_call<Format>& call, const activations<Format>&,
             const stage_view<Format, Source>& view, std::byte*, choice<float>*) const {
        for_rows(*call.out, call.tokens.most, scale_body<Format, Source, First, Node>{node_, view, state_});
    }

private:
    Node node_;
    std::size_t state_ = 0;
};

// Values into rows of one format, one after the other or `stride` apart.
template <codec To>
struct row_write {
    typename To::storage* data;
    std::size_t stride;

    template <std::size_t N>
    __device__ void operator()(std::size_t t, std::size_t feature, const pack<N>& v,
                               std::size_t count) const {
        store<To, N>(v, data + t * stride + feature, count);
    }
};

// Sources one after the other for whole rows, kept in Format in between. State: the last one's row.
template <codec Format, std::size_t First, chained_source Chain>
class chain_step {
    using storage = typename Format::storage;
    template <std::size_t I>
    using stage_of = stage<Format, part_of<Chain, I>>;
    static constexpr std::size_t count = std::tuple_size_v<parts_of<Chain>>;
    using widths = std::array<std::size_t, count + 1>;
    static constexpr std::make_index_sequence<count> all{};

    template <std::size_t I>
    static std::span<const tensor_view> tensors_of(std::span<const tensor_view> tensors) {
        return tensors.subspan(part_offset<Chain, I>(), tensor_count<part_of<Chain, I>>());
    }
    template <std::size_t... I>
    static auto make(const Chain& chain, std::span<const tensor_view> tensors, const widths& w, uploads& up,
                     std::index_sequence<I...>) {
        return std::tuple<stage_of<I>...>{
            stage_of<I>(std::get<I>(chain.parts()), tensors_of<I>(tensors), {w[I + 1], w[I]}, up)...};
    }
    template <std::size_t... I>
    static widths measure(std::span<const tensor_view> tensors, const stage_sizes& sizes,
                          std::index_sequence<I...>) {
        return {{sizes.inputs, part_width<Chain, I>(tensors)..., sizes.outputs}};
    }

public:
    chain_step(const Chain& chain, std::span<const tensor_view> tensors, const stage_sizes& sizes,
               uploads& up)
        : widths_(measure(tensors, sizes, std::make_index_sequence<count - 1>{})),
          stages_(make(chain, tensors, widths_, up, all)) {}
    // The experts of the first part that routes.
    [[nodiscard]] std::size_t choices() const noexcept {
        std::size_t first = 0;
        std::apply([&](const auto&... s) { ((first = first == 0 ? s.choices() : first), ...); }, stages_);
        return first;
    }
    [[nodiscard]] std::size_t state_numbers() const noexcept { return widths_[count]; }
    template <std::size_t N>
    void describe(slot (&slots)[N], std::size_t state) noexcept {
        slots[First].state = state_ = state;
    }
    [[nodiscard]] std::size_t bytes(std::size_t tokens) const noexcept {
        std::size_t most = 0;
        std::apply([&](const auto&... s) { ((most = std::max(most, s.workspace_bytes(tokens))), ...); },
                   stages_);
        return buffers(nullptr, tokens).used() + most;
    }
    template <class View>
    void run(const device_call<Format>& call, const activations<Format>& in, const View& view,
             std::byte* memory, choice<float>* routes) const {
        const device_arena areas = buffers(memory, call.tokens.most);
        run_from<0>(call, in, view.state + state_, view.state_numbers, device_arena(memory), areas.rest(),
                    routes);
    }

private:
    [[nodiscard]] device_arena buffers(std::byte* memory, std::size_t tokens) const noexcept {
        device_arena areas(memory);
        for (std::size_t i = 1; i < count; ++i) areas.take<storage>(tokens * widths_[i]);
        return areas;
    }
    template <std::size_t I>
    void run_from(const device_call<Format>& call, const activations<Format>& in, float* state,
                  std::size_t stride, device_arena areas, std::byte* rest, choice<float>* routes) const {
        const auto& part = std::get<I>(stages_);
        choice<float>* const own = part.choices() > 0 ? std::exchange(routes, nullptr) : nullptr;
        if constexpr (I + 1 == count) {
            part.run(call, in, rest, own, row_write<f32>{state, stride});
        } else {
            const std::size_t width = widths_[I + 1];
            auto* const to = areas.take<storage>(call.tokens.most * width);
            part.run(call, in, rest, own, row_write<Format>{to, width});
            run_from<I + 1>(call, {to, width}, state, stride, areas, rest, routes);
        }
    }

    widths widths_;  // of the chain's input, then of each part
    decltype(make(std::declval<const Chain&>(), {}, {}, std::declval<uploads&>(), all)) stages_;
    std::size_t state_ = 0;
};

// The step of a node itself, where it norms a row. (Not a lambda below: nvcc 12 would look at both branches.)
template <codec Format, source_policy Source, std::size_t First, composite_source S>
auto step_of_norm([[maybe_unused]] const S& s, [[maybe_unused]] std::span<const tensor_view> own,
                  [[maybe_unused]] const stage_sizes& sizes, [[maybe_unused]] uploads& up) {
    if constexpr (row_normed_source<S>)
        return std::tuple<norm_step<Format, Source, First, S>>(
            norm_step<Format, Source, First, S>(s, own, sizes, up));
    else
        return std::tuple<>();
}

// The steps of all nodes of the tree below s, itself in the tree of Source: parts before what they are
// part of.
template <codec Format, source_policy Source, std::size_t First = 0, source_policy S = Source>
auto make_steps(const S& s, std::span<const tensor_view> tensors, const stage_sizes& sizes, uploads& up) {
    const auto own = tensors.subspan(tensors.empty() ? 0 : First, tensors.empty() ? 0 : tensor_count<S>());
    if constexpr (chained_source<S>) {
        return std::tuple<chain_step<Format, First, S>>(chain_step<Format, First, S>(s, own, sizes, up));
    } else if constexpr (routed_source<S>) {
        return std::tuple<routed_step<Format, First, S>>(routed_step<Format, First, S>(s, own, sizes, up));
    } else if constexpr (composite_source<S>) {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
            const auto& parts = s.parts();
            return std::tuple_cat(make_steps<Format, Source, First + part_offset<S, I>()>(
                                      std::get<I>(parts), tensors, sizes, up)...,
                                  step_of_norm<Format, Source, First>(s, own, sizes, up));
        }
        (part_indices<S>{});
    } else {
        return std::tuple<>();
    }
}

}  // namespace cuda_detail

TIFFIN_END
