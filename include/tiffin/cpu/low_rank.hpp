// The inner half of a low-rank bank: A_e x, the rank-r intermediate, computed once per token before a formula.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/bind/preparation.hpp>
#include <tiffin/bind/source_sizes.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/grouped_tokens.hpp>
#include <tiffin/executor/executor.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

// Multiplies by the bank A: rank values per token and choice; each expert's weights are read once for all its tokens.
template <class Machine>
class low_rank_stage {
public:
    using activations = typename Machine::activations;

    low_rank_stage(const tensor_view& a, std::size_t inputs, const preparation& how)
        : experts_(a.shape[0]), rank_(a.shape[1]), inputs_(inputs) {
        const dtype type = chosen_by(a);
        for (std::size_t e = 0; e < experts_; ++e) {
            weights_.emplace_back(rank_, inputs_, 1, formats_of(how.formats, std::span(&type, 1)));
            weights_.back().pack(0, a.rows_from(e * rank_, {rank_, inputs_}), how);
        }
        how.done(a);
    }
    [[nodiscard]] std::size_t experts() const noexcept { return experts_; }
    [[nodiscard]] std::size_t rank() const noexcept { return rank_; }

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t choices,
                                              std::size_t workers) const noexcept {
        detail::arena<64> areas;
        grouped_tokens::lay_out(areas, tokens, choices, experts_);
        areas.take<float>(std::min(workers, experts_) * floats_per_worker(tokens));
        return areas.used();
    }

    // Stores (A_e x)[r] of choice i of token t after the choices of t, at index i * rank + r.
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
            float* const mine = scratch + worker * floats_per_worker(call.tokens);
            for (std::size_t e; (e = next.fetch_add(1, std::memory_order_relaxed)) < experts_;)
                for (std::uint32_t first = groups.starts[e]; first < groups.starts[e + 1]; first += chunk)
                    multiply(e, in, chosen, groups.order + first,
                             std::min<std::size_t>(chunk, groups.starts[e + 1] - first), mine);
        };
        call.execute(workers, task_ref(work));
    }

private:
    static constexpr std::uint32_t chunk = 24;  // tokens gathered at a time

    [[nodiscard]] std::size_t floats_per_worker(std::size_t tokens) const noexcept {
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
