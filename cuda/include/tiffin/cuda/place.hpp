// The place (token, some features) of a source on the device.
#pragma once

#include <tiffin/cuda/call.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/source/tree.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace cuda_detail {

// What a stage keeps of one tensor of its tree. Which members count is the kind's business.
struct slot {
    const void* numbers = nullptr;  // vector: f32; low_rank_out: (experts, rank, outputs) as Format
    float number = 0;               // scalar, row_width
    std::size_t expert_step = 0;    // pool: numbers from one expert's row to the next's
    std::size_t table = 0;          // table, pool: which of the stage's row sources
    std::size_t rank = 0;
    std::size_t choices = 0;
    std::size_t state = 0;  // where a token's state of this tensor begins
};

// A source with its tensors and one call's tokens, as kernels get it.
template <codec Format, source_policy Source>
struct stage_view {
    static constexpr std::size_t sources =
        count_of<Source>(tensor_kind::table) + count_of<Source>(tensor_kind::pool);

    Source source;
    slot slots[tensor_count<Source>() + 1];
    row_source rows[sources + 1];
    std::size_t outputs = 0;
    token_range tokens{};
    refused_ids refused{};
    float* state = nullptr;
    std::size_t state_numbers = 0;
    matrix_view<const typename Format::storage> given{};
};

template <codec Format, class Source, std::size_t N>
struct place {
    using numbers = pack<N>;
    using storage = typename Format::storage;

    const stage_view<Format, Source>& stage;
    std::size_t token;
    std::size_t feature;
    std::size_t count;  // features that exist
    const numbers* products;

    template <std::size_t Slot, class Tensor>
    __device__ numbers value() const {
        constexpr tensor_kind kind = Tensor::kind;
        const slot& s = stage.slots[Slot];
        if constexpr (kind == tensor_kind::projection) {
            return products[ordinal<Slot>];
        } else if constexpr (kind == tensor_kind::table) {
            return load<Format, N>(row(s) + feature, count);
        } else if constexpr (kind == tensor_kind::vector) {
            return s.numbers != nullptr ? load<f32, N>(static_cast<const float*>(s.numbers) + feature, count)
                                        : numbers(0.0f);
        } else if constexpr (kind == tensor_kind::scalar || kind == tensor_kind::row_width) {
            return numbers(s.number);
        } else if constexpr (kind == tensor_kind::row_scale) {
            return numbers(*state(s));
        } else if constexpr (kind == tensor_kind::computed) {
            return load<f32, N>(state(s) + feature, count);
        } else if constexpr (kind == tensor_kind::given) {
            return load<Format, N>(stage.given.row(stage.tokens.row(token)) + feature, count);
        } else if constexpr (kind == tensor_kind::pool) {
            return mixed_rows(s);
        } else {
            static_assert(kind == tensor_kind::low_rank_out,
                          "tiffin: at[tensor]: a tensor of this kind has no value of its own in a formula");
            return low_rank(s);
        }
    }
    template <class Formula>
    __device__ numbers by_number(const Formula& formula, const std::same_as<numbers> auto&... values) const {
        return by_lane<N>(formula, values...);
    }

private:
    template <std::size_t Slot>
    static constexpr std::size_t ordinal = ordinal_of<Source>(Slot);

    __device__ const storage* row(const slot& s) const {
        return reinterpret_cast<const storage*>(
            stage.rows[s.table].row(stage.tokens.row(token), stage.refused));
    }
    __device__ const float* state(const slot& s) const {
        return stage.state + token * stage.state_numbers + s.state;
    }
    __device__ numbers mixed_rows(const slot& s) const {
        const storage* const first = row(s);
        const auto* const chosen = reinterpret_cast<const choice<float>*>(state(s));
        numbers total(0.0f);
        for (std::size_t i = 0; i < s.choices; ++i)
            total =
                total +
                numbers(chosen[i].weight) *
                    load<Format, N>(
                        first + static_cast<std::size_t>(chosen[i].expert) * s.expert_step + feature, count);
        return total;
    }
    __device__ numbers low_rank(const slot& s) const {
        const auto* const chosen = reinterpret_cast<const choice<float>*>(state(s));
        const float* z = state(s) + 2 * s.choices;
        numbers total(0.0f);
        for (std::size_t i = 0; i < s.choices; ++i, z += s.rank) {
            const auto* b = static_cast<const storage*>(s.numbers) +
                            static_cast<std::size_t>(chosen[i].expert) * s.rank * stage.outputs + feature;
            numbers sum(0.0f);
            for (std::size_t r = 0; r < s.rank; ++r, b += stage.outputs)
                sum = sum + numbers(z[r]) * load<Format, N>(b, count);
            total = total + numbers(chosen[i].weight) * sum;
        }
        return total;
    }
};

}  // namespace cuda_detail

TIFFIN_END
