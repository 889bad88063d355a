// A mixture of experts on the host: tokens grouped by expert, experts one after the other; where tokens are few, each on
// a thread of its own.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/source_sizes.hpp>
#include <tiffin/cpu/chain.hpp>
#include <tiffin/cpu/grouped_tokens.hpp>
#include <tiffin/cpu/output.hpp>
#include <tiffin/cpu/router.hpp>
#include <tiffin/cpu/stage.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

template <class Machine>
class pending_rows;

// Whether two experts have tensors of the same formats and sizes and as many choices per token, and so take the same
// workspace.
inline bool are_sized_alike(const bound_node& a, const bound_node& b) noexcept {
    return a.width == b.width && a.choices == b.choices &&
           std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                      [](const tensor_view& one, const tensor_view& other) {
                          return one.shape == other.shape && chosen_by(one) == chosen_by(other) &&
                                 one.gathered == other.gathered;
                      }) &&
           std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(), are_sized_alike);
}

// The numbers of the weights of a source's products.
inline std::size_t weight_numbers(const plan_node& node, const bound_node& bound) noexcept {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < bound.tensors.size(); ++i)
        if (node.kind->tensors[i].kind == tensor_kind::projection) sum += bound.tensors[i].shape.elements();
    for (std::size_t i = 0, n = node.parts.size(); i < bound.parts.size(); ++i)
        sum += weight_numbers(i < n ? node.parts[i] : node.repeated_part(i - n), bound.parts[i]);
    return sum;
}

// The shared block first, then the experts by ascending index, each for the tokens that chose it.
template <class Machine>
class mixture_rows final : public source_rows<Machine> {
    using arena = detail::arena<64>;
    using activations = typename Machine::activations;
    using buffer = typename Machine::buffer;
    using products = typename Machine::products;

public:
    mixture_rows(const plan_node& node, const bound_node& bound, const source_sizes& sizes,
                 const preparation& how)
        : sizes_(sizes), recorded_(bound.recorded), router_(node, bound, sizes.inputs, how) {
        if (!node.parts.empty()) shared_ = make_rows<Machine>(node.parts[0], bound.parts[0], sizes, how);
        const std::size_t first = node.parts.size();
        for (std::size_t e = 0; first + e < bound.parts.size(); ++e) {
            const bound_node& expert = bound.parts[first + e];
            experts_.push_back(make_rows<Machine>(node.repeated_part(e), expert, sizes, how));
            const auto is_like = [&](std::size_t other) {
                return &node.repeated_part(e) == &node.repeated_part(other) &&
                       are_sized_alike(expert, bound.parts[first + other]);
            };
            if (std::any_of(sizes_differ_.begin(), sizes_differ_.end(), is_like)) continue;
            sizes_differ_.push_back(e);
            read_by(experts_[e]->multiplies_input());
            largest_ = std::max(largest_, weight_numbers(node.repeated_part(e), expert));
        }
    }

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                              std::size_t workers) const noexcept override {
        arena areas, apart;
        pending_rows<Machine>(areas, tokens, sizes_.outputs);
        lay_out(areas, tokens);
        std::size_t most = std::max(router_.workspace_bytes(tokens, workers), expert_bytes(tokens, workers));
        if (shared_) most = std::max(most, shared_->workspace_bytes(tokens, workers));
        // A call by fewer workers than this is sized for may go apart where one by all of them does not.
        if (const std::size_t w = std::min(workers, experts_.size()); goes_apart(w)) {
            lay_out_apart(apart, std::min(tokens, few_tokens), w);
            most = std::max(most, apart.used());
        }
        return areas.used() + most;
    }

    void run(const call_arguments& call, const activations& in, std::byte* memory,
             const output_rows& to) const override {
        arena areas(memory);
        const pending_rows<Machine> pending(areas, call.tokens, sizes_.outputs);
        const output_rows rows = pending.begin(call, to);
        const auto [at, rounded] = lay_out(areas, call.tokens);
        router_.run(call, in, areas.rest(), at.chosen);
        if (recorded_) record(call, at.chosen);
        const std::size_t active = at.sort(call, experts_.size(), rows);
        if (shared_)
            shared_->run(call, in, areas.rest(), rows);
        else
            for (std::size_t t = 0; t < call.tokens; ++t)
                std::memset(rows.row(t), 0, sizes_.outputs * sizeof(float));
        const activations read = inputs_of_experts(call, in, rounded);
        const std::size_t whole = whole_experts(active, largest_, call.tokens, call.workers);
        if (whole > 0) run_apart(whole, call, read, areas.rest(), at, rows);
        for (std::size_t i = whole; i < active; ++i) {
            const std::uint32_t first = at.groups.starts[at.active[i]];
            run_expert(at.active[i], call, read, areas.rest(), at,
                       {rows.y, at.out_rows + first, at.weights + first, true});
        }
        pending.end(call, to);
    }

private:
    // Notes the first products of one more expert, or null.
    void read_by(const products* one) noexcept {
        const products* const others = sizes_differ_.size() == 1 ? one : reads_;
        reads_ =
            one != nullptr && others != nullptr && Machine::rounds_alike(*others, *one) ? others : nullptr;
    }

    struct call_areas {
        grouped_choices at;
        buffer rounded;  // the input
    };
    call_areas lay_out(arena& areas, std::size_t tokens) const noexcept {
        const auto at = grouped_choices::lay_out(areas, tokens, router_.choices(), experts_.size());
        return {at, reads_ ? take_buffer<Machine>(areas, tokens, sizes_.inputs, nullptr, reads_)
                           : buffer{nullptr, tokens, sizes_.inputs}};
    }
    // The input as the experts read it: rounded once for all of them where they round it alike.
    [[nodiscard]] activations inputs_of_experts(const call_arguments& call, const activations& in,
                                                const buffer& to) const {
        if constexpr (requires { to.rounded; })
            if (to.rounded != nullptr) {
                for_tokens(call, 4 * sizes_.inputs,
                           [&](std::size_t t) noexcept { Machine::round_token(in, t, to); });
                return to.view();
            }
        return in;
    }

    // `memory`: the expert's inputs, then its own.
    void run_expert(std::size_t e, call_arguments call, const activations& in, std::byte* memory,
                    const grouped_choices& at, const output_rows& to) const {
        arena areas(memory);
        const std::size_t first = at.groups.starts[e], count = at.groups.starts[e + 1] - first;
        // An expert that all tokens chose, in their order, reads the mixture's input directly, unless it is rounded:
        // products write zeros behind rounded rows.
        const bool direct = count == call.tokens && in.data != nullptr;
        call.rows = at.in_rows + first;
        call.tokens = count;
        if (direct) return experts_[e]->run(call, in, areas.rest(), to);
        const buffer own = take_buffer<Machine>(areas, count, sizes_.inputs, nullptr, reads_);
        for_tokens(call, sizes_.inputs,
                   [&](std::size_t i) noexcept { Machine::copy_token(in, at.token(first + i), own, i); });
        experts_[e]->run(call, own.view(), areas.rest(), to);
    }
    [[nodiscard]] std::size_t expert_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        take_buffer<Machine>(areas, tokens, sizes_.inputs, nullptr, reads_);
        std::size_t most = 0;
        for (const std::size_t e : sizes_differ_)
            most = std::max(most, experts_[e]->workspace_bytes(tokens, workers));
        return areas.used() + most;
    }

    // Whether so many workers may take experts whole.
    [[nodiscard]] bool goes_apart(std::size_t workers) const noexcept {
        return workers > 1 && workers <= experts_.size();
    }
    struct apart_areas {
        float* values;      // of each choice
        std::byte* memory;  // of each worker
        std::size_t bytes;
    };
    apart_areas lay_out_apart(arena& areas, std::size_t tokens, std::size_t workers) const noexcept {
        const std::size_t bytes = expert_bytes(tokens, 1);
        auto* const values = areas.template take<float>(tokens * router_.choices() * sizes_.outputs);
        return {values, areas.template take<std::byte>(workers * bytes), bytes};
    }
    // The first `count` experts, each on one worker. Their values are added afterwards, in their order.
    void run_apart(std::size_t count, const call_arguments& call, const activations& in, std::byte* memory,
                   const grouped_choices& at, const output_rows& rows) const {
        arena areas(memory);
        const apart_areas apart = lay_out_apart(areas, call.tokens, call.workers);
        call_arguments alone = call;
        alone.workers = 1;
        alone.execute = serially;
        std::atomic<std::size_t> next{0};
        const auto work = [&](std::size_t worker) noexcept {
            for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
                const std::size_t e = at.active[i], first = at.groups.starts[e];
                run_expert(e, alone, in, apart.memory + worker * apart.bytes, at,
                           {{apart.values + first * sizes_.outputs, at.groups.starts[e + 1] - first,
                             sizes_.outputs}});
            }
        };
        call.execute(call.workers, task_ref(work));
        const output_rows sum{rows.y, at.out_rows, at.weights, true};
        const std::size_t choices = at.groups.starts[at.active[count - 1] + 1];
        constexpr std::size_t line = 16;
        const std::size_t lines = (sizes_.outputs + line - 1) / line;
        const std::size_t tasks = std::clamp<std::size_t>(choices * sizes_.outputs / 32768, 1, call.workers);
        const auto add = [&](std::size_t i) noexcept {
            const std::size_t end = std::min(lines * (i + 1) / tasks * line, sizes_.outputs);
            for (std::size_t p = 0; p < choices; ++p)
                for (std::size_t j = lines * i / tasks * line; j < end; j += Machine::lane_count) {
                    const std::size_t n = std::min(Machine::lane_count, end - j);
                    put<Machine>(sum, p, j, Machine::load(apart.values + p * sizes_.outputs + j, n), n);
                }
        };
        call.execute(tasks, task_ref(add));
    }

    source_sizes sizes_;
    bool recorded_;
    router_stage<Machine> router_;
    std::unique_ptr<const source_rows<Machine>> shared_;
    std::vector<std::unique_ptr<const source_rows<Machine>>> experts_;
    // One expert of each size: to ask all of them takes longer than to read one.
    std::vector<std::size_t> sizes_differ_;
    std::size_t largest_ = 0;          // weight_numbers() of an expert
    const products* reads_ = nullptr;  // one expert's first products, if all experts' round their input alike
};

}  // namespace cpu_detail

TIFFIN_END
