// A source with its tensors, passed to kernels by value.
#pragma once

#include <tiffin/bind/source_sizes.hpp>
#include <tiffin/cuda/engine/formula.hpp>
#include <tiffin/router/selection.hpp>

#include <concepts>
#include <cstddef>

TIFFIN_BEGIN

namespace engine_detail {

// What is kept of one tensor of a tree. Its kind determines which members are used.
struct slot {
    // vector: f32; low_rank_out: the bank in the layout of Target; chosen_rows: row 0.
    const void* numbers = nullptr;
    float number = 0;             // scalar, row_width
    std::size_t expert_step = 0;  // pool, chosen_rows: elements from one expert's row to the next
    std::size_t table = 0;        // table, pool, gathered chosen_rows: index in the view's `rows`
    std::size_t gathered = 0;     // chosen_rows: 0, or the number of the call's table (see tensor_view)
    std::size_t experts = 0;
    std::size_t rank = 0;
    std::size_t choices = 0;
    std::size_t state = 0;  // offset of this tensor in a token's state

    [[nodiscard]] TIFFIN_HD std::size_t offset_of(const choice<float>& chosen) const {
        return static_cast<std::size_t>(chosen.expert) * expert_step;
    }
};

// Target: the device (device.hpp). A token's state is `state_numbers` floats: choices and A_e x of routed leaves,
//   scales of norms and gates, precomputed rows.
template <class Target, source_policy Source>
struct view {
    using target = Target;
    static constexpr std::size_t tables = count_of<Source>(tensor_kind::table);
    static constexpr std::size_t row_sources = tables + count_of<Source>(tensor_kind::pool);
    static constexpr std::size_t chosen_tables = count_of<Source>(tensor_kind::chosen_rows);
    static constexpr bool chooses_rows = row_sources > tables || chosen_tables > 0;

    Source source;
    slot tensor_slots[slot_count<Source>() + 1] = {};
    typename Target::table_rows rows[row_sources + chosen_tables + 1] = {};
    std::size_t outputs = 0;
    std::size_t state_numbers = 0;
    float* state = nullptr;
    typename Target::call_view call{};
    typename Target::activations input{};  // what the source reads

    [[nodiscard]] TIFFIN_HD float* state_of(std::size_t t) const { return state + t * state_numbers; }
};

// The register that a chain's last part yields, read by the enclosing formula (see epilogue).
template <std::size_t Slot, class Register>
struct last_step {
    const Register& value;
};

// Operand access at a place (token, register of features). Numbers: the loads of Target (device.hpp, values.hpp).
// Products: those at this place, by sum<number>(); or last_step.
template <class Numbers, class View, class Products>
struct place {
    using reg = typename Numbers::reg;
    using source_type = decltype(View::source);

    const View& view;
    const typename View::target::token& token;
    std::size_t feature;
    std::size_t count;  // features of this register that exist
    Products products;

    template <std::size_t Slot, class Tensor>
    [[nodiscard]] TIFFIN_HD reg value() const {
        constexpr tensor_kind kind = Tensor::kind;
        const slot& s = view.tensor_slots[Slot];
        if constexpr (kind == tensor_kind::projection) {
            return products.template sum<ordinal_of<source_type, Slot>>();
        } else if constexpr (is_row_value(kind)) {
            return View::target::template value_of_rows<Numbers, kind>(view, token, s, feature, count);
        } else if constexpr (kind == tensor_kind::vector) {
            return s.numbers != nullptr
                       ? Numbers::load_vector(static_cast<const float*>(s.numbers), feature, count)
                       : reg(0.0f);
        } else if constexpr (kind == tensor_kind::scalar || kind == tensor_kind::row_width) {
            return reg(s.number);
        } else if constexpr (kind == tensor_kind::row_scale) {
            return reg(token.state[s.state]);
        } else if constexpr (kind == tensor_kind::computed) {
            if constexpr (std::same_as<Products, last_step<Slot, reg>>)
                return products.value;
            else
                return Numbers::load(token.state + s.state + feature, count);
        } else if constexpr (kind == tensor_kind::given) {
            return Numbers::load_given(token.given + feature, count);
        } else if constexpr (kind == tensor_kind::residual_row) {
            return Numbers::load_given(token.residual + feature, count);
        } else if constexpr (kind == tensor_kind::input_row) {
            return Numbers::load_given(View::target::input_at(view.input, token, feature), count);
        } else {
            static_assert(kind == tensor_kind::low_rank_out,
                          "tiffin: at[tensor]: a tensor of this kind has no value of its own in a formula");
            return low_rank(s);
        }
    }
    template <class Formula>
    [[nodiscard]] TIFFIN_HD reg by_number(const Formula& formula,
                                          const std::same_as<reg> auto&... values) const {
        return Numbers::apply(formula, values...);
    }

private:
    [[nodiscard]] TIFFIN_HD reg low_rank(const slot& s) const {
        const auto* const chosen = reinterpret_cast<const choice<float>*>(token.state + s.state);
        const float* z = token.state + s.state + 2 * s.choices;
        reg total(0.0f);
        for (std::size_t i = 0; i < s.choices; ++i, z += s.rank) {
            const auto bank =
                Numbers::bank(s, static_cast<std::size_t>(chosen[i].expert), view.outputs, feature);
            const auto* b = bank.first;
            reg sum(0.0f);
            for (std::size_t r = 0; r < s.rank; ++r, b += bank.step)
                sum = Numbers::multiply_add(reg(z[r]), Numbers::load_bank(b, count), sum);
            total = Numbers::multiply_add(reg(chosen[i].weight), sum, total);
        }
        return total;
    }
};

// The epilogue of a chain: the formula of the enclosing tree, evaluated in the registers of the chain's last part.
template <class View, std::size_t Chain, class Store>
struct epilogue {
    typename View::target::template kept<View> view;
    Store store;

    template <class Register>
    TIFFIN_HD void operator()(std::size_t t, std::size_t feature, const Register& v,
                              std::size_t count) const {
        using target = typename View::target;
        using numbers = typename target::template numbers<Register>;
        const typename target::token token = target::token_at(view, t);
        const place<numbers, View, last_step<Chain, Register>> here{view, token, feature, count, {v}};
        store(t, feature, Register(evaluate(view.source, here)), count);
    }
};

}  // namespace engine_detail

TIFFIN_END
