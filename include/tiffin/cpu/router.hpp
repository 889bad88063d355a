// What is computed once per token before a formula: its route, and the rank numbers of a low-rank bank.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/preparation.hpp>
#include <tiffin/bind/stored_numbers.hpp>
#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/engine/view.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/format/f32.hpp>
#include <tiffin/router/selection.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

// The experts of each token by a router. `inputs` is the width of what it reads.
template <class Machine, router_policy Router>
class router_stage {
public:
    using activations = typename Machine::activations;

    router_stage(const Router& router, const bound_node& bound, std::span<const tensor_kind> kinds,
                 std::size_t inputs, const preparation& how)
        : router_(router), choices_(bound.choices) {
        const std::span<const tensor_view> tensors = bound.tensors;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            if (kinds[i] == tensor_kind::logits) {
                experts_ = tensors[i].shape[0];
                weight_.push_back(Machine::exact_products(experts_, inputs));
                weight_.back().pack(0, tensors[i], how);
            } else if (kinds[i] == tensor_kind::selection_bias) {
                bias_ = stored_numbers(tensors[i], tensors[i].shape.elements());  // a copy
                how.hold(bias_.own_bytes());
            } else if (kinds[i] == tensor_kind::route_map) {
                map_.resize(tensors[i].shape.elements());
                for (std::size_t n = 0; n < map_.size(); ++n)
                    map_[n] = static_cast<std::int32_t>(detail::load_integer(tensors[i], n));
                how.hold(map_.size() * sizeof map_[0]);
            }
        }
    }

    [[nodiscard]] std::size_t choices() const noexcept { return choices_; }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        detail::arena<64> areas;
        if (!weight_.empty()) lay_out(areas, tokens, workers);
        return areas.used();
    }

    void run(const call_arguments& call, const activations& in, std::byte* memory,
             const engine_detail::chosen_experts& to) const {
        if constexpr (learned_router<Router>) {
            detail::arena<64> areas(memory);
            const auto [logits, scratch, sums] = lay_out(areas, call.tokens, call.workers);
            float* const all = logits;
            weight_[0].run(in, sums, call.workers, call.execute,
                           [&](std::size_t t, std::size_t count, std::size_t first, std::size_t features,
                               const auto& products) {
                               for (std::size_t i = 0; i < count; ++i)
                                   for (std::size_t e = 0; e < features; ++e)
                                       all[(t + i) * experts_ + first + e] = *products.first.at(i, e);
                           });
            double* const spare = scratch;
            for (std::size_t t = 0; t < call.tokens; ++t)
                choose(router_, all + t * experts_, experts_, bias_.floats(), spare, to.of(t));
        } else {
            for (std::size_t t = 0; t < call.tokens; ++t)
                for (std::size_t i = 0; i < choices_; ++i)
                    to.of(t)[i] = {map_[static_cast<std::size_t>(call.token_id(t)) * choices_ + i], 1.0f};
        }
    }

private:
    struct areas_of_a_call {
        float* logits;
        double* scratch;
        float* sums;
    };
    areas_of_a_call lay_out(detail::arena<64>& areas, std::size_t tokens,
                            std::size_t workers) const noexcept {
        float* const logits = areas.take<float>(tokens * experts_);
        auto* const scratch = areas.take<double>(2 * experts_);
        return {logits, scratch, areas.take<float>(weight_[0].scratch_numbers(tokens, workers))};
    }

    [[no_unique_address]] Router router_;
    std::size_t choices_;
    std::size_t experts_ = 0;
    std::vector<typename Machine::products> weight_;
    stored_numbers bias_;
    std::vector<std::int32_t> map_;
};

// Tokens sorted by the expert that was chosen for them, `choices` experts per token.
struct grouped_tokens {
    std::uint32_t* order;   // (tokens * choices): token * choices + which, expert by expert
    std::uint32_t* starts;  // (experts + 1)

    static grouped_tokens lay_out(detail::arena<64>& areas, std::size_t tokens, std::size_t choices,
                                  std::size_t experts) noexcept {
        auto* const order = areas.take<std::uint32_t>(tokens * choices);
        return {order, areas.take<std::uint32_t>(experts + 1)};
    }
    // Within an expert tokens keep their order.
    void sort(std::size_t tokens, std::size_t experts,
              const engine_detail::chosen_experts& chosen) const noexcept {
        const std::size_t choices = chosen.choices;
        std::fill_n(starts, experts + 1, 0u);
        const auto for_all = [&](const auto& visit) {
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t i = 0; i < choices; ++i)
                    visit(static_cast<std::size_t>(chosen.of(t)[i].expert),
                          static_cast<std::uint32_t>(t * choices + i));
        };
        for_all([&](std::size_t e, std::uint32_t) { ++starts[e + 1]; });
        for (std::size_t e = 0; e < experts; ++e) starts[e + 1] += starts[e];
        for_all([&](std::size_t e, std::uint32_t entry) { order[starts[e]++] = entry; });
        for (std::size_t e = experts; e > 0; --e) starts[e] = starts[e - 1];
        starts[0] = 0;
    }
};

// The bank A: rank numbers per token and choice, each expert's weights read once for all its tokens.
template <class Machine>
class low_rank_stage {
public:
    using activations = typename Machine::activations;

    low_rank_stage(const tensor_view& a, std::size_t inputs, const preparation& how)
        : experts_(a.shape[0]), rank_(a.shape[1]), inputs_(inputs) {
        for (std::size_t e = 0; e < experts_; ++e) {
            tensor_view one = a;
            one.data = static_cast<const std::byte*>(a.data) + bytes_of(a.type, e * rank_ * inputs_);
            one.shape = {rank_, inputs_};
            weights_.emplace_back(rank_, inputs_, 1, formats_of(how.formats, std::span(&a.type, 1)));
            weights_.back().pack(0, one, how);
        }
        how.done(a);
    }
    [[nodiscard]] std::size_t experts() const noexcept { return experts_; }
    [[nodiscard]] std::size_t rank() const noexcept { return rank_; }

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t choices,
                                              std::size_t workers) const noexcept {
        detail::arena<64> areas;
        grouped_tokens::lay_out(areas, tokens, choices, experts_);
        areas.take<float>(std::min(workers, experts_) * numbers_a_worker(tokens));
        return areas.used();
    }

    // Writes (A_e x)[r] of choice i of token t behind the choices of t, to number i * rank + r.
    void run(const call_arguments& call, const activations& in, std::byte* memory,
             const engine_detail::chosen_experts& chosen) const {
        detail::arena<64> areas(memory);
        const std::size_t choices = chosen.choices;
        const grouped_tokens groups = grouped_tokens::lay_out(areas, call.tokens, choices, experts_);
        float* const scratch = areas.take<float>(0);
        groups.sort(call.tokens, experts_, chosen);
        const std::size_t workers = std::min({call.workers, experts_, call.tokens * choices});
        std::atomic<std::size_t> next{0};
        const auto work = [&](std::size_t worker) noexcept {
            float* const mine = scratch + worker * numbers_a_worker(call.tokens);
            for (std::size_t e; (e = next.fetch_add(1, std::memory_order_relaxed)) < experts_;)
                for (std::uint32_t first = groups.starts[e]; first < groups.starts[e + 1]; first += chunk)
                    multiply(e, in, chosen, groups.order + first,
                             std::min<std::size_t>(chunk, groups.starts[e + 1] - first), mine);
        };
        call.execute(workers, task_ref(work));
    }

private:
    static constexpr std::uint32_t chunk = 24;  // tokens gathered at a time

    [[nodiscard]] std::size_t numbers_a_worker(std::size_t tokens) const noexcept {
        const std::size_t most = std::min<std::size_t>(tokens, chunk);
        return (Machine::buffer::numbers(most, inputs_) + 15) / 16 * 16 +
               (weights_[0].scratch_numbers(most, 1) + 15) / 16 * 16;
    }
    void multiply(std::size_t e, const activations& in, const engine_detail::chosen_experts& chosen,
                  const std::uint32_t* entries, std::size_t count, float* scratch) const noexcept {
        const std::size_t choices = chosen.choices;
        const typename Machine::buffer gathered{scratch, count, inputs_};
        float* const sums = scratch + (Machine::buffer::numbers(count, inputs_) + 15) / 16 * 16;
        for (std::size_t i = 0; i < count; ++i) Machine::copy_token(in, entries[i] / choices, gathered, i);
        weights_[e].run(gathered.view(), sums, 1, serial{},
                        [&](std::size_t t, std::size_t tokens, std::size_t first, std::size_t features,
                            const auto& products) {
                            for (std::size_t i = 0; i < tokens; ++i)
                                for (std::size_t r = 0; r < features; ++r)
                                    chosen.state[entries[t + i] / choices * chosen.stride + 2 * choices +
                                                 entries[t + i] % choices * rank_ + first + r] =
                                        *products.first.at(i, r);
                        });
    }

    std::size_t experts_;
    std::size_t rank_;
    std::size_t inputs_;
    std::vector<typename Machine::products> weights_;
};

}  // namespace cpu_detail

TIFFIN_END
