// One half of a block on the CPU: a source evaluated for all tokens, products and formula fused.
#pragma once

#include <tiffin/backend/held_numbers.hpp>
#include <tiffin/backend/simd/packed_weights.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/source/tree.hpp>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

TIFFIN_BEGIN

namespace simd_detail {

// Activations in depth blocks: (inputs / depth_block, tokens, depth_block). The rows of a tile are then
// a constant distance apart, whatever the width, and never collide in a cache set. A single token's
// row is in this form as it stands.
struct activations {
    const float* data;
    std::size_t tokens;

    [[nodiscard]] const float* row(std::size_t k0, std::size_t token) const noexcept {
        return data + (k0 * tokens + token * depth_block);
    }
};

inline constexpr std::size_t blocked_size(std::size_t tokens, std::size_t features) noexcept {
    return (features + depth_block - 1) / depth_block * depth_block * tokens;
}

// The place (token, register of features) of a source in the simd backend.
template <class Arch, format_policy Tables, class Source, std::size_t Spread>
struct register_place {
    const float* products;  // this token's accumulators for the panel, already at the spread wanted
    const typename Tables::storage* const* rows;  // of this token, one per table, `row_step` apart
    std::size_t row_step;
    const float* const* vectors;
    std::size_t feature;
    std::size_t count;  // features of this register that exist

    template <std::size_t Slot, class Tensor>
    [[nodiscard]] lanes<Arch> value() const noexcept {
        constexpr std::size_t ordinal = ordinal_of<Source>(Slot);
        if constexpr (Tensor::kind == tensor_kind::projection) {
            return lanes<Arch>::load_aligned(products + ordinal * Spread * width<Arch>);
        } else if constexpr (Tensor::kind == tensor_kind::table) {
            return load<Tables, Arch>(rows[ordinal * row_step] + feature, count);
        } else {
            const float* const v = vectors[ordinal];
            return v ? lanes<Arch>::load_aligned(v + feature) : lanes<Arch>(0.0f);
        }
    }
    template <class Formula>
    [[nodiscard]] lanes<Arch> by_number(const Formula& formula,
                                        const std::same_as<lanes<Arch>> auto&... values) const {
        return apply<Arch>(formula, values...);
    }
};

template <class Arch, format_policy Weights, format_policy Tables, source_policy Source>
class stage {
public:
    static constexpr std::size_t tables = count_of<Source>(tensor_kind::table);
    using table_storage = typename Tables::storage;

    stage(const Source& source, std::span<const tensor_view> tensors, std::size_t outputs, std::size_t inputs)
        : source_(source), weights_(outputs, inputs, group_size(outputs)) {
        static constexpr auto specs = specs_of<Source>("");
        std::size_t projection = 0;
        for (std::size_t i = 0; i < specs.size(); ++i) {
            const tensor_view& t = tensors[i];
            if (specs[i].kind == tensor_kind::projection) {
                weights_.pack(projection++, t);
            } else if (specs[i].kind == tensor_kind::table) {
                tables_.emplace_back(t);
            } else {
                const std::size_t padded = (outputs + width<Arch> - 1) / width<Arch> * width<Arch>;
                vectors_.emplace_back(t, padded);
                vector_data_.push_back(vectors_.back().data());
            }
        }
    }

    // Floats a worker needs for the accumulators of a group.
    [[nodiscard]] std::size_t scratch_numbers(std::size_t tokens) const noexcept {
        return std::min(tokens, token_block) * weights_.group_panels() * packed::panel_numbers;
    }
    [[nodiscard]] std::size_t workers(std::size_t most) const noexcept {
        return std::min(most, weights_.groups());
    }

    // Where the rows of the call's tokens begin: rows[table * tokens + token].
    void find_rows(const std::int32_t* token_ids, std::size_t tokens,
                   const table_storage** rows) const noexcept {
        for (std::size_t n = 0; n < tables; ++n)
            for (std::size_t t = 0; t < tokens; ++t)
                rows[n * tokens + t] =
                    tables_[n].data() + static_cast<std::size_t>(token_ids[t]) * weights_.outputs();
    }

    // Calls store(token, feature, register, count) for every token and register of outputs.
    // `scratch` holds scratch_numbers(tokens) for each of workers(most).
    template <class Store>
    void run(activations in, const table_storage* const* rows, float* scratch, std::size_t most_workers,
             const executor_ref& execute, const Store& store) const {
        std::atomic<std::size_t> next{0};
        const auto work = [&](std::size_t worker) noexcept {
            float* const mine = scratch + worker * scratch_numbers(in.tokens);
            // The group after this one is claimed early, so that its first weights can be asked for.
            std::size_t group = next.fetch_add(1, std::memory_order_relaxed);
            while (group < weights_.groups()) {
                const std::size_t following = next.fetch_add(1, std::memory_order_relaxed);
                run_group(group, following, in, rows, mine, store);
                group = following;
            }
        };
        execute(workers(most_workers), task_ref(work));
    }

private:
    static constexpr std::size_t projections = count_of<Source>(tensor_kind::projection);
    // Tokens that share one pass over a group: their inputs and accumulators fit the second-level cache.
    static constexpr std::size_t token_block = 192;
    using packed = packed_weights<Arch, Weights, projections>;
    using reg = lanes<Arch>;

    // Few enough panels that the groups can be shared evenly, many enough to reuse the inputs.
    static std::size_t group_size(std::size_t outputs) noexcept {
        return std::clamp<std::size_t>(outputs / packed::panel_outputs / 16, 1, 8);
    }

    template <class Store>
    void run_group(std::size_t group, std::size_t following, activations in, const table_storage* const* rows,
                   float* acc, const Store& store) const noexcept {
        const std::size_t blocks = (in.tokens + token_block - 1) / token_block;
        for (std::size_t b = 0; b < blocks; ++b) {
            const std::size_t first = in.tokens * b / blocks;
            const std::size_t count = in.tokens * (b + 1) / blocks - first;
            if constexpr (projections > 0)
                multiply(group, b + 1 < blocks ? group : following, in, first, count, acc);
            finish(group, in.tokens, first, count, rows, acc, store);
        }
    }

    // acc[panel][token][register] = products of the group's panels with tokens [first, first + count).
    void multiply(std::size_t group, std::size_t following, activations in, std::size_t first,
                  std::size_t count, float* acc) const noexcept {
        static constexpr auto& tile_of = tiles<Arch, Weights, packed::registers>;
        const std::size_t tile_count = (count + tile_of.size() - 1) / tile_of.size();
        const std::size_t first_panel = group * weights_.group_panels();
        const std::size_t panels = weights_.panels_in(group);
        for (std::size_t k0 = 0; k0 < weights_.inputs(); k0 += depth_block) {
            const std::size_t depth = std::min(depth_block, weights_.inputs() - k0);
            const std::size_t bytes = depth * packed::panel_numbers * sizeof(typename Weights::storage);
            const std::size_t steps = std::max<std::size_t>(depth / ask_every, 1) * tile_count;
            const std::size_t lines = (bytes / 64 + steps - 1) / steps;
            for (std::size_t p = 0; p < panels; ++p) {
                const auto* const w = weights_.block(first_panel + p, k0);
                const auto* soon = reinterpret_cast<const std::byte*>(w) + bytes;
                if (p + 1 == panels && k0 + depth == weights_.inputs())
                    soon = following < weights_.groups() ? reinterpret_cast<const std::byte*>(weights_.block(
                                                               following * weights_.group_panels(), 0))
                                                         : nullptr;
                for (std::size_t i = 0, done = 0; i < tile_count; ++i) {
                    const std::size_t until = count * (i + 1) / tile_count;
                    const std::size_t skip = i * (depth / ask_every) * lines * 64;
                    const bool fetch = soon != nullptr && skip + 64 <= bytes;
                    tile_of[until - done - 1](in.row(k0, first + done), depth, w,
                                              acc + (p * count + done) * packed::panel_numbers, k0 == 0,
                                              fetch ? ahead{soon + skip, lines} : ahead{});
                    done = until;
                }
            }
        }
    }

    template <class Store>
    void finish(std::size_t group, std::size_t tokens, std::size_t first, std::size_t count,
                const table_storage* const* rows, const float* acc, const Store& store) const noexcept {
        const std::size_t panels = weights_.panels_in(group);
        const std::size_t first_feature = group * weights_.group_panels() * packed::panel_outputs;
        const std::size_t features =
            std::min(panels * packed::panel_outputs, weights_.outputs() - first_feature);
        for (std::size_t t = 0; t < count; ++t) {
            // The rows of a call lie anywhere in their tables: ask for the next token's before they are due.
            if (t + 1 < count)
                for (std::size_t n = 0; n < tables; ++n)
                    ask_for(rows[n * tokens + first + t + 1] + first_feature, features);
            for (std::size_t i = 0; i < features; i += width<Arch>) {
                const std::size_t panel = i / packed::panel_outputs;
                const std::size_t left = std::min(width<Arch>, features - i);
                const register_place<Arch, Tables, Source, packed::spread> place{
                    acc + (panel * count + t) * packed::panel_numbers + i % packed::panel_outputs,
                    rows + first + t,
                    tokens,
                    vector_data_.data(),
                    first_feature + i,
                    left};
                store(first + t, first_feature + i, reg(evaluate(source_, place)), left);
            }
        }
    }

    static void ask_for(const table_storage* from, std::size_t count) noexcept {
        const auto* const bytes = reinterpret_cast<const std::byte*>(from);
        for (std::size_t i = 0; i < count * sizeof(table_storage); i += 64) __builtin_prefetch(bytes + i);
    }

    [[no_unique_address]] Source source_;
    packed weights_;
    std::vector<held_numbers<Tables>> tables_;
    std::vector<held_numbers<f32>> vectors_;
    std::vector<const float*> vector_data_;
};

}  // namespace simd_detail

TIFFIN_END
