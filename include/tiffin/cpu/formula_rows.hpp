// The rows that a formula reads: table rows, rows chosen by a router, token rows given with the call.
#pragma once

#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/kept_rows.hpp>
#include <tiffin/cpu/packed_bank.hpp>
#include <tiffin/cpu/product_sums.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>
#include <tiffin/plan/op.hpp>
#include <tiffin/router/selection.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>

TIFFIN_BEGIN

namespace cpu_detail {

// A call as the formula of a source reads it: its tokens, the source's input and the per-token state.
template <class Machine>
struct formula_call {
    const call_arguments& call;
    typename Machine::activations in;
    float* state;
    std::size_t state_numbers;  // floats per token

    [[nodiscard]] const float* state_of(std::size_t t) const noexcept { return state + t * state_numbers; }
};

// A block: some tokens and features of a call.
struct block_range {
    std::size_t token, tokens;
    std::size_t feature, features;
};

// A tensor whose rows a formula reads.
struct row_tensor {
    tensor_kind kind;
    kept_rows kept{};
    std::size_t width = 0;
    std::size_t gathered = 0;     // 0, or the number of the gathered table, from 1 on
    std::size_t expert_step = 0;  // pool, chosen_rows: rows of a table from one expert's row to the next
    std::size_t choices = 0;
    std::size_t state = 0;  // offset of the choices in the per-token state
    const packed_bank* bank = nullptr;
    std::size_t rank = 0;

    [[nodiscard]] const choice<float>* chosen(const float* token_state) const noexcept {
        return reinterpret_cast<const choice<float>*>(token_state + state);
    }
    // Calls visit(row, weight) for each row that token t reads.
    template <class Machine, class Visit>
    void each(const formula_call<Machine>& of, std::size_t t, const Visit& visit) const noexcept {
        const call_arguments& call = of.call;
        const auto by_id = [&] {
            if (gathered != 0) return call.gathered_row(gathered, t);
            return kept.row(static_cast<std::size_t>(call.token_id(t)));
        };
        if (kind == tensor_kind::table) return visit(by_id(), 1.0f);
        const choice<float>* const of_token = chosen(of.state_of(t));
        for (std::size_t i = 0; i < choices && of_token[i].expert >= 0; ++i)
            visit(row_of(call, t, i, static_cast<std::size_t>(of_token[i].expert)), of_token[i].weight);
    }
    // The row of choice i of token t, which is expert e.
    [[nodiscard]] stored_row row_of(const call_arguments& call, std::size_t t, std::size_t i,
                                    std::size_t e) const noexcept {
        const bool pool = kind == tensor_kind::pool;
        if (gathered == 0)
            return kept.row(e * expert_step + (pool ? static_cast<std::size_t>(call.token_id(t)) : 0));
        if (!pool) return call.gathered_row(gathered, t, choices, i);
        // The rows of all experts, one after the other.
        stored_row row = call.gathered_row(gathered, t);
        row.codes += kept.format.bytes(e * width);
        row.first += e * width;
        return row;
    }
    void prefetch(const auto& of, std::size_t t, std::size_t first, std::size_t features) const noexcept {
        if (!holds_rows(kind) || first >= width) return;
        const std::size_t behind = std::min(first + features, width);
        each(of, t, [&](const stored_row& row, float) noexcept {
            const std::size_t end = kept.format.bytes(behind - 1) + kept.format.block_bytes;
            for (std::size_t at = kept.format.bytes(first); at < end; at += 64)
                __builtin_prefetch(row.codes + at);
            if (row.scales != nullptr) __builtin_prefetch(row.scales);
            // g++ 12 drops calls of a function that does nothing but prefetch.
            __asm__ volatile("" : : "r"(row.codes));
        });
    }
};

// Reads a tensor's rows of a block for an op: in place where they are whole registers of f32, else copied to `room`,
// `step` floats per token. `rows` has room for one pointer per token.
template <class Machine>
class row_reader {
public:
    using reg = typename Machine::reg;

    row_reader(const row_tensor& tensor, const formula_call<Machine>& of, const block_range& at,
               std::size_t step) noexcept
        : tensor_(tensor), of_(of), at_(at), step_(step) {}

    [[nodiscard]] operand<float> read(float* room, const float** rows, std::size_t panel) const noexcept {
        const bool whole = at_.features % Machine::lane_count == 0;
        const bool in_place = whole && tensor_.kept.are_f32() && tensor_.kind != tensor_kind::pool &&
                              tensor_.kind != tensor_kind::chosen_rows &&
                              tensor_.kind != tensor_kind::low_rank_out;
        for (std::size_t i = 0; i < at_.tokens; ++i) {
            const std::size_t t = at_.token + i;
            if (in_place)
                rows[i] = row(t) + at_.feature;
            else
                copy(t, room + i * step_);
        }
        return in_place ? operand<float>{nullptr, rows, 0, panel}
                        : operand<float>{room, nullptr, step_, panel};
    }

private:
    // The f32 row of token t, of a tensor with one row per token.
    [[nodiscard]] const float* row(std::size_t t) const noexcept {
        const call_arguments& call = of_.call;
        switch (tensor_.kind) {
            case tensor_kind::given: return call.per_layer_input.row(call.row(t));
            case tensor_kind::residual_row: return call.residual.row(call.row(t));
            case tensor_kind::input_row: return Machine::input_at(of_.in, t, at_.feature) - at_.feature;
            default: break;
        }
        const float* found = nullptr;
        tensor_.each(of_, t, [&](const stored_row& row, float) { found = kept_rows::values(row); });
        return found;
    }
    void copy(std::size_t t, float* to) const noexcept {
        switch (tensor_.kind) {
            case tensor_kind::low_rank_out: return mix_bank(t, to);
            case tensor_kind::pool:
            case tensor_kind::chosen_rows: return mix_rows(t, to);
            case tensor_kind::table:
                return tensor_.each(of_, t, [&](const stored_row& row, float) noexcept {
                    tensor_.kept.read(row, at_.feature, at_.features, to);
                });
            default:
                return static_cast<void>(std::memcpy(to, row(t) + at_.feature, at_.features * sizeof *to));
        }
    }
    void mix_rows(std::size_t t, float* to) const noexcept {
        std::fill_n(to, step_, 0.0f);
        alignas(64) float one[block_numbers];
        const kept_rows& kept = tensor_.kept;
        tensor_.each(of_, t, [&](const stored_row& row, float weight) noexcept {
            const float* from = kept_rows::values(row) + at_.feature;
            if (!kept.are_f32()) kept.read(row, at_.feature, at_.features, one), from = one;
            for (std::size_t j = 0; j < at_.features; j += Machine::lane_count) {
                const std::size_t n = std::min(Machine::lane_count, at_.features - j);
                Machine::store(Machine::multiply_add(reg(weight), Machine::load_row(from + j, n),
                                                     Machine::load(to + j, Machine::lane_count)),
                               to + j, Machine::lane_count);
            }
        });
    }
    // The sum over the choices e of w_e B_e z_e; z_e = A_e x, the rank-r intermediate, is stored after the choices.
    void mix_bank(std::size_t t, float* to) const noexcept {
        const choice<float>* const chosen = tensor_.chosen(of_.state_of(t));
        const float* const z = of_.state_of(t) + tensor_.state + 2 * tensor_.choices;
        const std::size_t rank = tensor_.rank;
        for (std::size_t j = 0; j < at_.features; j += Machine::lane_count) {
            reg total(0.0f);
            for (std::size_t i = 0; i < tensor_.choices; ++i) {
                const float* b =
                    tensor_.bank->at(static_cast<std::size_t>(chosen[i].expert), at_.feature + j);
                reg sum(0.0f);
                for (std::size_t r = 0; r < rank; ++r, b += bank_group)
                    sum = Machine::multiply_add(reg(z[i * rank + r]), Machine::load_aligned(b), sum);
                total = Machine::multiply_add(reg(chosen[i].weight), sum, total);
            }
            Machine::store(total, to + j, Machine::lane_count);
        }
    }

    const row_tensor& tensor_;
    const formula_call<Machine>& of_;
    const block_range& at_;
    std::size_t step_;
};

}  // namespace cpu_detail

TIFFIN_END
