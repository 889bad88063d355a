// The arguments of a call: as the caller gives them, and as an engine receives them.
#pragma once

#include <tiffin/call/carried_residuals.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/view.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

TIFFIN_BEGIN

// The inputs of a call beside x. Token ids alone convert to it; other inputs are given by name:
//
//     layer(x, {.token_ids = ids, .residual = residual_stream}, y);
struct token_inputs {
    std::span<const std::int32_t> token_ids{};   // (T), or empty where the block reads none
    matrix_view<const float> residual{};         // (T, d_model), see on_residual
    matrix_view<const float> per_layer_input{};  // (T, width), see per_layer_input
    // Output (T, choices()): the choices of the outermost part that routes; empty: not recorded.
    std::span<choice<float>> routes{};
    carried_residuals* carried = nullptr;  // of this forward pass, see delayed
    // Rows of the tables that were added by add_gathered(), in the order of addition.
    std::span<const gathered_rows> gathered{};
};

namespace detail {

// Anything that converts to a span of token ids.
template <class R>
concept id_range = std::convertible_to<const R&, std::span<const std::int32_t>>;

inline const token_inputs& as_inputs(const token_inputs& given) noexcept {
    return given;
}
template <id_range R>
token_inputs as_inputs(const R& ids) noexcept {
    return {.token_ids = ids};
}

}  // namespace detail

// Destination rows: y[rows[i]] (+)= weights[i] value[i]. Null rows: i itself; null weights: 1.
struct output_rows {
    matrix_view<float> y;
    const std::uint32_t* rows = nullptr;
    const float* weights = nullptr;
    bool add = false;

    [[nodiscard]] float* row(std::size_t i) const noexcept { return y.row(rows ? rows[i] : i); }
    // Whether they can hold intermediate values.
    [[nodiscard]] bool is_plain() const noexcept { return !add && weights == nullptr; }
};

// The input of one engine run: every size is checked, every token id lies in its table.
// Token i is row row(i) of x, token_ids, residual and per_layer_input.
struct call_arguments {
    matrix_view<const float> x{};
    const std::int32_t* token_ids = nullptr;
    matrix_view<const float> residual{};
    matrix_view<const float> per_layer_input{};
    const gathered_rows* gathered = nullptr;  // of the whole call; `first` tokens precede these
    std::size_t first = 0;
    const std::uint32_t* rows = nullptr;
    std::size_t tokens = 0;
    output_rows to{};
    choice<float>* routes = nullptr;
    matrix_view<float> carried{};  // of a delayed block: read, then overwritten
    bool carried_is_due = false;
    std::byte* workspace = nullptr;  // aligned to a cache line, of workspace_bytes(tokens, workers)
    std::size_t workers = 1;         // the most tasks that may run at once
    executor_ref execute;

    [[nodiscard]] std::size_t row(std::size_t i) const noexcept { return rows ? rows[i] : i; }
    [[nodiscard]] std::int32_t token_id(std::size_t i) const noexcept {
        return token_ids ? token_ids[row(i)] : 0;
    }
    // The row of token i in gathered table `number`, from 1 on; or the row of its choice `which`.
    [[nodiscard]] stored_row gathered_row(std::size_t number, std::size_t i, std::size_t choices = 1,
                                          std::size_t which = 0) const noexcept {
        return gathered[number - 1].stored((first + row(i)) * choices + which);
    }
};

namespace detail {

// Restricts `call` to one piece of it: tokens first to first + count.
template <class Call, class Inputs>
void set_piece(Call& call, const Inputs& inputs, std::size_t choices, std::size_t first, std::size_t count) {
    const auto piece_of = [&](const auto& m) { return m.data ? m.rows_from(first, count) : m; };
    call.token_ids = inputs.token_ids.empty() ? nullptr : inputs.token_ids.data() + first;
    call.residual = piece_of(inputs.residual);
    call.per_layer_input = piece_of(inputs.per_layer_input);
    call.gathered = inputs.gathered.data();
    call.first = first;
    call.routes = inputs.routes.empty() ? nullptr : inputs.routes.data() + first * choices;
}

// Divides a call's workspace into areas, each aligned to `Line` bytes. Without memory it only counts.
template <std::size_t Line>
class arena {
public:
    explicit arena(std::byte* memory = nullptr) noexcept : begin_(memory) {}
    template <class T>
    T* take(std::size_t count) noexcept {
        std::byte* const at = begin_ ? begin_ + used_ : nullptr;
        used_ += (count * sizeof(T) + Line - 1) / Line * Line;
        return reinterpret_cast<T*>(at);
    }
    [[nodiscard]] std::byte* rest() const noexcept { return begin_ ? begin_ + used_ : nullptr; }
    [[nodiscard]] std::size_t used() const noexcept { return used_; }

private:
    std::byte* begin_;
    std::size_t used_ = 0;
};

}  // namespace detail

TIFFIN_END
