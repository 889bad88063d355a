// A formula as a list of ops, evaluated over blocks of tokens and features that fit a first-level cache.
#pragma once

#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/block_sink.hpp>
#include <tiffin/cpu/formula_rows.hpp>
#include <tiffin/cpu/product_sums.hpp>
#include <tiffin/plan/ops_of.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

// Where the values of an operand are stored.
struct value_ref {
    enum class from : std::uint8_t {
        sum,           // product sums of a weight, by its index
        chain_output,  // output of a chain's last step, whose epilogue the formula is
        row,           // a row tensor, by its index
        state,         // a row in the per-token state, from `index` on
        scale,         // a float in the per-token state
        vector,        // `numbers`, one value per feature
        number,        // the scalar at `numbers`
        zeros,         // zeros for an absent tensor
        temporary      // the output of an earlier op
    };
    from where = from::temporary;
    std::uint32_t index = 0;
    const float* numbers = nullptr;
};

// The input of a formula besides its tensors: product sums, the output of a chain's last step, or neither.
struct formula_input {
    const product_sums* sums = nullptr;
    const value_block* last = nullptr;
};

template <class Machine>
class block_formula {
public:
    std::size_t products = 0;  // weights whose sums it reads
    std::vector<row_tensor> rows;

    // Adds an op and returns where its value is stored. Temporaries among its operands are free after it.
    value_ref add(op_function<float> op, const void* policy, const std::vector<value_ref>& in) {
        for (const value_ref& v : in)
            if (v.where == value_ref::from::temporary) used_[v.index] = false;
        widest_ = std::max(widest_, static_cast<std::uint32_t>(in.size()));
        std::uint32_t out = 0;
        while (out < used_.size() && used_[out]) ++out;
        if (out == used_.size()) used_.push_back(false);
        used_[out] = true;
        steps_.push_back({op, policy, static_cast<std::uint32_t>(operands_.size()),
                          static_cast<std::uint16_t>(in.size()), static_cast<std::uint16_t>(out)});
        operands_.insert(operands_.end(), in.begin(), in.end());
        return {value_ref::from::temporary, out, nullptr};
    }
    // Sets the result. A value that the last op did not compute is copied by one more op.
    void end_with(const value_ref& value) {
        if (steps_.empty() || value.where != value_ref::from::temporary || value.index != steps_.back().out)
            add(&plan_detail::copy<Machine>, nullptr, {value});
        at_once_ =
            static_cast<std::uint32_t>(std::min(block_numbers, room_numbers / (used_.size() + widest_)));
    }

    // Most features of a one-token block, a multiple of 256; may exceed finished_at_once.
    [[nodiscard]] std::size_t features_at_once() const noexcept { return at_once_ / 256 * 256; }
    [[nodiscard]] bool is_empty() const noexcept { return steps_.empty(); }
    // Prefetches the rows that a block reads.
    void prefetch(const formula_call<Machine>& of, const block_range& at) const noexcept {
        for (const row_tensor& r : rows)
            for (std::size_t i = 0; i < at.tokens; ++i) r.prefetch(of, at.token + i, at.feature, at.features);
    }

    // Evaluates the formula over a block and passes the values to the sink.
    void run(const formula_call<Machine>& of, const block_range& at, const formula_input& input,
             const block_sink& to) const noexcept {
        if (at.tokens == 1) {
            // With one token, weights are read between two blocks: time to fetch the row's next features.
            prefetch(of, {at.token, 1, at.feature + at.features, at.features});
            return run_block(of, at, at.token, input, to);
        }
        const std::size_t tokens = std::clamp<std::size_t>(
            at_once_ / static_cast<std::uint32_t>(padded(at.features)), 1, most_tokens);
        const std::size_t end = at.token + at.tokens;
        for (std::size_t t = at.token; t < end; t += tokens) {
            const std::size_t now = std::min(tokens, end - t), next = std::min(tokens, end - t - now);
            if (next > 0) {
                prefetch(of, {t + now, next, at.feature, at.features});
                to.prefetch(t + now, next, at.feature, at.features);
            }
            run_block(of, {t, now, at.feature, at.features}, at.token, input, to);
        }
    }

private:
    // Room for finished_at_once features of all temporaries and operands that a formula can have.
    static constexpr std::size_t room_numbers =
        (plan_detail::most_values + plan_detail::most_operands) * finished_at_once;
    static constexpr std::size_t most_tokens = 64;

    struct step {
        op_function<float> run;
        const void* policy;
        std::uint32_t first;  // its first operand
        std::uint16_t operands;
        std::uint16_t out;  // a temporary
    };
    static constexpr std::size_t padded(std::size_t features) noexcept { return (features + 15) / 16 * 16; }
    [[nodiscard]] bool has_last_sum() const noexcept { return products > 1 && products % 2 == 1; }

    void run_block(const formula_call<Machine>& of, const block_range& at, std::size_t first_token,
                   const formula_input& input, const block_sink& to) const noexcept {
        alignas(64) float room[room_numbers];
        const float* row_begins[plan_detail::most_operands][most_tokens];
        const std::size_t width = padded(at.features), area = at.tokens * width;
        const std::size_t panel = input.sums != nullptr ? input.sums->first.outputs : at.features;
        const std::size_t skipped = at.token - first_token;  // of the input's tokens
        // Operand k of an op.
        const auto find = [&](const value_ref& v, std::size_t k) -> operand<float> {
            float* const free = room + (used_.size() + k) * area;
            switch (v.where) {
                case value_ref::from::sum: return sum(*input.sums, v.index, skipped, at, panel, free);
                case value_ref::from::chain_output:
                    return {input.last->data + skipped * input.last->step, nullptr, input.last->step, panel};
                case value_ref::from::row:
                    return row_reader<Machine>(rows[v.index], of, at, width).read(free, row_begins[k], panel);
                case value_ref::from::state:
                    return {of.state_of(at.token) + v.index + at.feature, nullptr, of.state_numbers, panel};
                case value_ref::from::scale:
                    return {of.state_of(at.token) + v.index, nullptr, of.state_numbers, 0};
                case value_ref::from::vector: return {v.numbers + at.feature, nullptr, 0, panel};
                case value_ref::from::number: return {v.numbers, nullptr, 0, 0};
                case value_ref::from::zeros: return {zeros, nullptr, 0, 0};
                case value_ref::from::temporary: return {room + v.index * area, nullptr, width, panel};
            }
            return {};
        };
        operand<float> in[plan_detail::most_operands];
        for (std::size_t i = 0; i < steps_.size(); ++i) {
            const step& s = steps_[i];
            for (std::size_t k = 0; k < s.operands; ++k) in[k] = find(operands_[s.first + k], k);
            op_call<float> call{s.policy, in, at.tokens, at.features, panel, room + s.out * area, width};
            float* placed = nullptr;
            if (i + 1 == steps_.size())
                if ((placed = to.place(at.token, at.feature, at.features, call.out_step)) != nullptr)
                    call.out = placed;
            if (placed == nullptr) call.out_step = width;
            s.run(call);
            if (i + 1 == steps_.size() && placed == nullptr)
                to.put({at.token, at.tokens, at.feature, at.features, call.out, width});
        }
    }
    // The sums of a weight. The last weight of an odd number has panels of its own, whose sums are copied.
    operand<float> sum(const product_sums& all, std::size_t weight, std::size_t token, const block_range& at,
                       std::size_t panel, float* room) const noexcept {
        const weight_sums& first = all.first;
        if (!has_last_sum() || weight + 1 < products)
            return {first.data + weight / 2 * all.pair_step + weight % 2 * all.weight_step +
                        token * first.token_step,
                    nullptr, first.token_step, first.panel_step};
        const std::size_t width = padded(at.features);
        for (std::size_t t = 0; t < at.tokens; ++t)
            for (std::size_t j = 0; j < at.features; j += Machine::lane_count)
                Machine::store(Machine::load_aligned(all.last.at(token + t, j)), room + t * width + j,
                               Machine::lane_count);
        return {room, nullptr, width, panel};
    }

    alignas(64) static constexpr float zeros[block_numbers] = {};
    // Contiguous: the weights read between two blocks evict them from the caches.
    std::vector<step> steps_;
    std::vector<value_ref> operands_;
    std::vector<std::uint8_t> used_;  // per temporary: whether it holds a value
    std::uint32_t widest_ = 1;        // most operands of an op
    std::uint32_t at_once_ = 0;       // most values of a block
};

}  // namespace cpu_detail

TIFFIN_END
