// The place (token, register of features) of a source in a backend that computes whole rows.
#pragma once

#include <tiffin/format/any_format.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/source/tree.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace fused_detail {

// Features of a bank that lie together, so that a group of panels reads one piece of an expert.
inline constexpr std::size_t bank_group = 128;

// The widths of a stage, and the formats in which it keeps its tensors.
struct stage_sizes {
    std::size_t outputs;
    std::size_t inputs;
    number_formats formats;
};

// What a stage keeps of one tensor of its tree. Which members count is the kind's business.
template <class Machine>
struct slot {
    const float* numbers = nullptr;  // vector
    float number = 0;                // scalar, row_width
    const float* bank = nullptr;     // low_rank_out, in groups of features
    dtype type = dtype::f32;         // of a table's or a pool's numbers
    std::size_t expert_step = 0;     // pool: numbers from one expert's row to the next's
    std::size_t table = 0;           // pool: which of the token's rows
    std::size_t experts = 0;
    std::size_t rank = 0;
    std::size_t choices = 0;
    std::size_t state = 0;  // where the token's state of this tensor begins
};

// What a stage keeps of each token of a call: `stride` numbers.
struct token_states {
    float* data;
    std::size_t stride;
};

// A token as a stage sees it.
template <class Machine>
struct token_state {
    const typename Machine::table_storage* const* rows;  // one a table and pool, `row_step` apart
    std::size_t row_step;
    const float* state;
    const float* given;
};

template <class Machine, class Source>
struct place {
    using reg = typename Machine::reg;

    const slot<Machine>* slots;
    const token_state<Machine>& token;
    const float* products;  // this token's accumulators for this register, `step` apart
    std::size_t step;
    std::size_t feature;
    std::size_t count;  // features of this register that exist

    template <std::size_t Slot, class Tensor>
    [[nodiscard]] reg value() const noexcept {
        constexpr tensor_kind kind = Tensor::kind;
        const slot<Machine>& s = slots[Slot];
        if constexpr (kind == tensor_kind::projection) {
            return Machine::load_aligned(products + ordinal_of<Source>(Slot) * step);
        } else if constexpr (kind == tensor_kind::table) {
            return Machine::load_row(token.rows[ordinal_of<Source>(Slot) * token.row_step], s.type, feature,
                                     count);
        } else if constexpr (kind == tensor_kind::vector) {
            return s.numbers ? Machine::load_aligned(s.numbers + feature) : reg(0.0f);
        } else if constexpr (kind == tensor_kind::scalar || kind == tensor_kind::row_width) {
            return reg(s.number);
        } else if constexpr (kind == tensor_kind::row_scale) {
            return reg(token.state[s.state]);
        } else if constexpr (kind == tensor_kind::computed) {
            return Machine::load(token.state + s.state + feature, count);
        } else if constexpr (kind == tensor_kind::given) {
            return Machine::load(token.given + feature, count);
        } else if constexpr (kind == tensor_kind::pool) {
            return mixed_rows(s);
        } else {
            static_assert(kind == tensor_kind::low_rank_out,
                          "tiffin: at[tensor]: a tensor of this kind has no value of its own in a formula");
            return low_rank(s);
        }
    }
    template <class Formula>
    [[nodiscard]] reg by_number(const Formula& formula, const std::same_as<reg> auto&... values) const {
        return Machine::apply(formula, values...);
    }

private:
    [[nodiscard]] reg mixed_rows(const slot<Machine>& s) const noexcept {
        const auto* const first = token.rows[s.table * token.row_step];
        const auto* const chosen = reinterpret_cast<const choice<float>*>(token.state + s.state);
        reg total(0.0f);
        for (std::size_t i = 0; i < s.choices; ++i) {
            const auto* const row = Machine::table_numbers::at(
                first, s.type, static_cast<std::size_t>(chosen[i].expert) * s.expert_step);
            total = Machine::multiply_add(reg(chosen[i].weight),
                                          Machine::load_row(row, s.type, feature, count), total);
        }
        return total;
    }
    [[nodiscard]] reg low_rank(const slot<Machine>& s) const noexcept {
        const auto* const chosen = reinterpret_cast<const choice<float>*>(token.state + s.state);
        const float* z = token.state + s.state + 2 * s.choices;
        const std::size_t group = feature / bank_group * s.experts;
        reg total(0.0f);
        for (std::size_t i = 0; i < s.choices; ++i, z += s.rank) {
            const auto* b = s.bank +
                            (group + static_cast<std::size_t>(chosen[i].expert)) * s.rank * bank_group +
                            feature % bank_group;
            reg sum(0.0f);
            for (std::size_t r = 0; r < s.rank; ++r, b += bank_group)
                sum = Machine::multiply_add(reg(z[r]), Machine::load_aligned(b), sum);
            total = Machine::multiply_add(reg(chosen[i].weight), sum, total);
        }
        return total;
    }
};

}  // namespace fused_detail

TIFFIN_END
