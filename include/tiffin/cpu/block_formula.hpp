// A formula as a list of ops, evaluated over blocks of tokens and features that a first-level cache holds.
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

// Where an op finds the values of an operand.
struct value_ref {
    enum class from : std::uint8_t {
        sum,       // of products, by the weight's number
        last,      // the last step of a chain, which the formula stands above
        row,       // a row tensor, by its number
        state,     // a row in the token's state, from `index` on
        scale,     // a number in the token's state
        vector,    // `numbers`
        number,    // the one at `numbers`
        zeros,     // of a tensor that is not given
        temporary  // what an op before it left
    };
    from where = from::temporary;
    std::uint32_t index = 0;
    const float* numbers = nullptr;
};

// What a formula stands on: the sums of products, the last step of a chain, or neither.
struct formula_input {
    const product_sums* sums = nullptr;
    const value_block* last = nullptr;
};

template <class Machine>
class block_formula {
public:
    std::size_t products = 0;  // sums that it reads
    std::vector<row_tensor> rows;

    // Adds an op, and tells where its value is found. What it reads of temporaries is free after it.
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
    // The value of the whole. It comes of an op: of a copy, where it is somebody else's.
    void end_with(const value_ref& value) {
        if (steps_.empty() || value.where != value_ref::from::temporary || value.index != steps_.back().out)
            add(&plan_detail::copy<Machine>, nullptr, {value});
        at_once_ =
            static_cast<std::uint32_t>(std::min(block_numbers, room_numbers / (used_.size() + widest_)));
    }

    // Features of a place, at most: of few tokens more than products have.
    [[nodiscard]] std::size_t features_at_once() const noexcept { return at_once_ / 256 * 256; }
    [[nodiscard]] bool is_empty() const noexcept { return steps_.empty(); }
    // Asks the cache for the rows that are read at a place.
    void prefetch(const formula_call<Machine>& of, const place_of_block& at) const noexcept {
        for (const row_tensor& r : rows)
            for (std::size_t i = 0; i < at.tokens; ++i) r.prefetch(of, at.token + i, at.feature, at.features);
    }

    // Evaluates it at a place, and hands the values on.
    void run(const formula_call<Machine>& of, const place_of_block& at, const formula_input& input,
             const block_sink& to) const noexcept {
        if (at.tokens == 1) {
            // Between two blocks of one token lie the weights of the next: time to fetch the row's next features.
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
    // For as many features as products finish, of every temporary and operand that there can be.
    static constexpr std::size_t room_numbers =
        (plan_detail::most_values + plan_detail::most_operands) * finished_at_once;
    static constexpr std::size_t most_tokens = 64;

    struct step {
        op_function<float> run;
        const void* policy;
        std::uint32_t first;  // of its operands
        std::uint16_t operands;
        std::uint16_t out;  // temporary
    };
    static constexpr std::size_t padded(std::size_t features) noexcept { return (features + 15) / 16 * 16; }
    [[nodiscard]] bool has_last_sum() const noexcept { return products > 1 && products % 2 == 1; }

    void run_block(const formula_call<Machine>& of, const place_of_block& at, std::size_t first_token,
                   const formula_input& input, const block_sink& to) const noexcept {
        alignas(64) float room[room_numbers];
        const float* row_begins[plan_detail::most_operands][most_tokens];
        const std::size_t width = padded(at.features), area = at.tokens * width;
        const std::size_t panel = input.sums != nullptr ? input.sums->first.outputs : at.features;
        const std::size_t skipped = at.token - first_token;  // tokens of the input
        // Operand number k of an op.
        const auto find = [&](const value_ref& v, std::size_t k) -> operand<float> {
            float* const free = room + (used_.size() + k) * area;
            switch (v.where) {
                case value_ref::from::sum: return sum(*input.sums, v.index, skipped, at, panel, free);
                case value_ref::from::last:
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
    // The sums of a weight. Those of an odd number's last one are in panels of their own, and are copied.
    operand<float> sum(const product_sums& all, std::size_t weight, std::size_t token,
                       const place_of_block& at, std::size_t panel, float* room) const noexcept {
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
    // Side by side: between two blocks weights have pushed them out of the caches.
    std::vector<step> steps_;
    std::vector<value_ref> operands_;
    std::vector<std::uint8_t> used_;  // temporaries, whether one holds a value
    std::uint32_t widest_ = 1;        // operands of an op, at most
    std::uint32_t at_once_ = 0;       // numbers of a block
};

}  // namespace cpu_detail

TIFFIN_END
