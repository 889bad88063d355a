// The nodes of a source that are computed once a token: routed leaves, norms of a row, chains.
#pragma once

#include <tiffin/backend/fused/place.hpp>
#include <tiffin/backend/fused/routed_step.hpp>
#include <tiffin/source/tree.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

TIFFIN_BEGIN

namespace fused_detail {

template <class Machine, source_policy Source>
class stage;

// A norm over the row of the source below it. State: one number, the scale.
template <class Machine, source_policy Source, std::size_t First, row_normed_source Node>
class norm_step {
public:
    norm_step(const Node& node, std::span<const tensor_view>, const stage_sizes& sizes)
        : node_(node), outputs_(sizes.outputs) {}
    static constexpr std::size_t choices() noexcept { return 0; }
    static constexpr std::size_t state_numbers() noexcept { return 1; }
    static constexpr std::size_t workspace_bytes(std::size_t, std::size_t) noexcept { return 0; }
    template <std::size_t N>
    void describe(std::array<slot<Machine>, N>& slots, std::size_t state) noexcept {
        slots[First].state = state_ = state;
    }
    template <class Slots, class Token>
    void run(const call_arguments& call, const typename Machine::activations&, const token_states& states,
             std::byte*, choice<float>*, const Slots& slots, const Token& token) const {
        constexpr std::size_t first = First + part_offset<Node, 0>();
        for_tokens(call, outputs_, [&](std::size_t t) noexcept {
            const token_state<Machine> at = token(t);
            typename Machine::reg squares(0.0f);
            for (std::size_t j = 0; j < outputs_; j += Machine::lane_count) {
                const std::size_t count = std::min(Machine::lane_count, outputs_ - j);
                const place<Machine, Source> here{slots.data(), at, nullptr, 0, j, count};
                squares =
                    Machine::add_square(evaluate<first>(std::get<0>(node_.parts()), here), count, squares);
            }
            states.data[t * states.stride + state_] =
                static_cast<float>(node_.norm.scale(Machine::sum(squares), static_cast<float>(outputs_)));
        });
    }

private:
    Node node_;
    std::size_t outputs_;
    std::size_t state_ = 0;
};

// Sources one after the other for whole rows. State: the last one's row.
template <class Machine, std::size_t First, chained_source Chain>
class chain_step {
    template <std::size_t I>
    using stage_of = stage<Machine, part_of<Chain, I>>;
    static constexpr std::size_t count = std::tuple_size_v<parts_of<Chain>>;

    template <std::size_t... I>
    static auto make(const Chain& chain, std::span<const tensor_view> tensors,
                     const std::array<std::size_t, count + 1>& widths, const number_formats& formats,
                     std::index_sequence<I...>) {
        return std::tuple<stage_of<I>...>(
            stage_of<I>(std::get<I>(chain.parts()),
                        tensors.subspan(part_offset<Chain, I>(), tensor_count<part_of<Chain, I>>()),
                        stage_sizes{widths[I + 1], widths[I], formats})...);
    }
    template <std::size_t... I>
    static std::array<std::size_t, count + 1> measure(std::span<const tensor_view> tensors,
                                                      const stage_sizes& sizes, std::index_sequence<I...>) {
        return {{sizes.inputs, part_width<Chain, I>(tensors)..., sizes.outputs}};
    }
    static constexpr std::make_index_sequence<count> all{};

public:
    chain_step(const Chain& chain, std::span<const tensor_view> tensors, const stage_sizes& sizes)
        : widths_(measure(tensors, sizes, std::make_index_sequence<count - 1>{})),
          stages_(make(chain, tensors, widths_, sizes.formats, all)) {}
    // The experts of the first part that routes.
    [[nodiscard]] std::size_t choices() const noexcept {
        std::size_t first = 0;
        std::apply([&](const auto&... s) { ((first = first == 0 ? s.choices() : first), ...); }, stages_);
        return first;
    }
    [[nodiscard]] std::size_t state_numbers() const noexcept { return widths_[count]; }
    template <std::size_t N>
    void describe(std::array<slot<Machine>, N>& slots, std::size_t state) noexcept {
        slots[First].state = state_ = state;
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        std::size_t most = 0;
        std::apply(
            [&](const auto&... s) { ((most = std::max(most, s.workspace_bytes(tokens, workers))), ...); },
            stages_);
        return buffers(nullptr, tokens).used() + most;
    }
    template <class Slots, class Token>
    void run(const call_arguments& call, const typename Machine::activations& in, const token_states& states,
             std::byte* memory, choice<float>* routes, const Slots&, const Token&) const {
        arena areas = buffers(memory, call.tokens);
        run_from<0>(call, in, {states.data + state_, states.stride}, arena(memory), areas.rest(), routes);
    }

private:
    [[nodiscard]] arena buffers(std::byte* memory, std::size_t tokens) const noexcept {
        arena areas(memory);
        for (std::size_t i = 1; i < count; ++i)
            areas.take<float>(Machine::buffer::numbers(tokens, widths_[i]));
        return areas;
    }
    template <std::size_t I>
    void run_from(const call_arguments& call, const typename Machine::activations& in,
                  const token_states& to_states, arena areas, std::byte* rest, choice<float>* routes) const {
        const auto& part = std::get<I>(stages_);
        choice<float>* const own = part.choices() > 0 ? std::exchange(routes, nullptr) : nullptr;
        if constexpr (I + 1 == count) {
            part.run(call, in, rest, own,
                     [to_states](std::size_t t, std::size_t feature, const typename Machine::reg& value,
                                 std::size_t n) {
                         Machine::store(value, to_states.data + t * to_states.stride + feature, n);
                     });
        } else {
            const typename Machine::buffer to{
                areas.take<float>(Machine::buffer::numbers(call.tokens, widths_[I + 1])), call.tokens,
                widths_[I + 1]};
            part.run(call, in, rest, own,
                     [&](std::size_t t, std::size_t feature, const typename Machine::reg& value,
                         std::size_t n) { Machine::put(value, to, t, feature, n); });
            run_from<I + 1>(call, to.view(), to_states, areas, rest, routes);
        }
    }

    std::array<std::size_t, count + 1> widths_;  // of the chain's input, then of each part
    decltype(make(std::declval<const Chain&>(), {}, {}, {}, all)) stages_;
    std::size_t state_ = 0;
};

// The steps of all nodes of the tree below s, itself in the tree of Source: parts before what they are part
// of.
template <class Machine, source_policy Source, std::size_t First = 0, source_policy S = Source>
auto make_steps(const S& s, std::span<const tensor_view> tensors, const stage_sizes& sizes) {
    const auto own = tensors.subspan(tensors.empty() ? 0 : First, tensors.empty() ? 0 : tensor_count<S>());
    if constexpr (chained_source<S>) {
        return std::tuple<chain_step<Machine, First, S>>(chain_step<Machine, First, S>(s, own, sizes));
    } else if constexpr (routed_source<S>) {
        return std::tuple<routed_step<Machine, First, S>>(routed_step<Machine, First, S>(s, own, sizes));
    } else if constexpr (composite_source<S>) {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
            const auto& parts = s.parts();
            const auto of_node = [&] {
                if constexpr (row_normed_source<S>)
                    return std::tuple<norm_step<Machine, Source, First, S>>(
                        norm_step<Machine, Source, First, S>(s, own, sizes));
                else
                    return std::tuple<>();
            };
            return std::tuple_cat(make_steps<Machine, Source, First + part_offset<S, I>()>(std::get<I>(parts),
                                                                                           tensors, sizes)...,
                                  of_node());
        }
        (part_indices<S>{});
    } else {
        return std::tuple<>();
    }
}

}  // namespace fused_detail

TIFFIN_END
