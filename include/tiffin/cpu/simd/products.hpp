// Activations times packed weights, group by group, the next group's weights asked for in time.
#pragma once

#include <tiffin/cpu/simd/packed_weights.hpp>
#include <tiffin/executor/executor.hpp>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <utility>

TIFFIN_BEGIN

namespace simd_detail {

// Activations in depth blocks: (inputs / depth_block, tokens, depth_block). The rows of a tile are then
// a constant distance apart, whatever the width, and never collide in a cache set. A single token's
// row is in this form as it stands.
struct activations {
    const float* data;
    std::size_t tokens;
    std::byte* rounded = nullptr;  // the same, where they were rounded as they were written

    [[nodiscard]] const float* row(std::size_t k0, std::size_t token) const noexcept {
        return data + (k0 * tokens + token * depth_block);
    }
};

inline constexpr std::size_t blocked_size(std::size_t tokens, std::size_t features) noexcept {
    return (features + depth_block - 1) / depth_block * depth_block * tokens;
}

// Count weights (outputs, inputs) times the same activations.
template <class Arch, format_policy Weights, activation_format Activations, std::size_t Count>
class products {
    using packed = packed_weights<Arch, Weights, Activations, Count>;

public:
    products(std::size_t outputs, std::size_t inputs, const number_formats& formats)
        : weights_(outputs, inputs, group_size(outputs), formats) {}
    void pack(std::size_t which, const tensor_view& weight, const preparation& how) {
        weights_.pack(which, weight, how);
    }

    // Sums of one token and one register of outputs: at(token, feature) of weight 0, step() on of the next.
    struct sums {
        const float* data;
        std::size_t tokens;

        static constexpr std::size_t step() noexcept { return packed::panel_outputs; }

        [[nodiscard]] const float* at(std::size_t token, std::size_t feature) const noexcept {
            return data + (feature / packed::panel_outputs * tokens + token) * packed::panel_numbers +
                   feature % packed::panel_outputs;
        }
    };

    // Floats for the sums of as many tasks as `most_workers` allows.
    [[nodiscard]] std::size_t scratch_numbers(std::size_t tokens, std::size_t most_workers) const noexcept {
        return rounded_numbers(tokens) + workers(most_workers) * numbers_a_worker(tokens);
    }

    // Calls finish(first token, tokens, first output, outputs, sums) for every part of the result.
    template <class Finish>
    void run(const activations& in, float* scratch, std::size_t most_workers, const executor_ref& execute,
             const Finish& finish) const {
        const std::byte* const rows = round(in, scratch, most_workers, execute);
        scratch += rounded_numbers(in.tokens);
        const tile_set& tiles = weights_.kernels().tiles_for(in.tokens);
        std::atomic<std::size_t> next{0};
        const auto work = [&](std::size_t worker) noexcept {
            float* const mine = scratch + worker * numbers_a_worker(in.tokens);
            // The group after this one is claimed early, so that its first weights can be asked for.
            std::size_t group = next.fetch_add(1, std::memory_order_relaxed);
            while (group < weights_.groups()) {
                const std::size_t following = next.fetch_add(1, std::memory_order_relaxed);
                run_group(group, following, rows, in.tokens, mine, finish);
                group = following;
            }
        };
        const auto inside = [&](std::size_t worker) noexcept { tiles.around(task_ref(work), worker); };
        execute(workers(most_workers), tiles.around == nullptr ? task_ref(work) : task_ref(inside));
    }

    // How the activations of these products are to be rounded.
    [[nodiscard]] const rounding& rounding_of_inputs() const noexcept { return weights_.kernels().rows; }
    // Outputs are finished in multiples of this, from a multiple on; but the last.
    [[nodiscard]] std::size_t outputs_at_once() const noexcept {
        return weights_.group_panels() * packed::panel_outputs;
    }

private:
    // Few enough panels that the groups can be shared evenly, many enough to reuse the inputs; as many as are
    // taken at once where there are enough.
    static std::size_t group_size(std::size_t outputs) noexcept {
        const std::size_t even = outputs / packed::panel_outputs / 16;
        return even >= 2 * panels_at_once   ? 2 * panels_at_once
               : even >= panels_at_once / 2 ? panels_at_once
                                            : 1;
    }
    [[nodiscard]] std::size_t workers(std::size_t most) const noexcept {
        return std::min(most, weights_.groups());
    }
    // Sums, then a block of weights unpacked.
    [[nodiscard]] std::size_t numbers_a_worker(std::size_t tokens) const noexcept {
        return sum_numbers(tokens) + (std::same_as<Weights, f32> ? 0 : depth_block * packed::panel_numbers);
    }
    // Activations as the tiles want them, in floats.
    [[nodiscard]] std::size_t rounded_numbers(std::size_t tokens) const noexcept {
        const rounding& how = weights_.kernels().rows;
        return how.round == nullptr ? 0 : how.bytes(tokens, weights_.inputs()) / sizeof(float);
    }
    // Rounds the activations once, if they are to be and are not yet; a single token's without a hand-over, which
    // would take longer.
    const std::byte* round(const activations& in, float* to, std::size_t most_workers,
                           const executor_ref& execute) const {
        const rounding& how = weights_.kernels().rows;
        if (how.round == nullptr) return reinterpret_cast<const std::byte*>(in.data);
        auto* const rows = in.rounded != nullptr ? in.rounded : reinterpret_cast<std::byte*>(to);
        const std::size_t spare = how.spare_rows * how.row_bytes;
        std::fill_n(rows + how.bytes(in.tokens, weights_.inputs()) - spare, spare, std::byte{0});
        if (in.rounded != nullptr) return rows;
        const std::size_t tasks = std::min(in.tokens, most_workers);
        const auto work = [&](std::size_t task) noexcept {
            for (std::size_t t = in.tokens * task / tasks; t < in.tokens * (task + 1) / tasks; ++t)
                for (std::size_t k0 = 0; k0 < weights_.inputs(); k0 += depth_block)
                    how(in.row(k0, t), in.tokens, t, k0, std::min(depth_block, weights_.inputs() - k0), rows);
        };
        execute(tasks, task_ref(work));
        return rows;
    }
    [[nodiscard]] std::size_t sum_numbers(std::size_t tokens) const noexcept {
        return std::min(tokens, token_block(weights_.kernels().rows.row_bytes)) * weights_.group_panels() *
               packed::panel_numbers;
    }

    template <class Finish>
    void run_group(std::size_t group, std::size_t following, const std::byte* rows, std::size_t tokens,
                   float* acc, const Finish& finish) const noexcept {
        const std::size_t first_output = group * weights_.group_panels() * packed::panel_outputs;
        const std::size_t outputs =
            std::min(weights_.panels_in(group) * packed::panel_outputs, weights_.outputs() - first_output);
        // Whole tiles to a block, as a smaller tile uses fewer of the registers.
        const std::size_t tile = weights_.kernels().tiles_for(tokens).tokens;
        const std::size_t tile_count = (tokens + tile - 1) / tile;
        const std::size_t most = token_block(weights_.kernels().rows.row_bytes);
        const std::size_t blocks = (tokens + most - 1) / most;
        for (std::size_t b = 0; b < blocks; ++b) {
            const std::size_t first = tile_count * b / blocks * tile;
            const std::size_t count = std::min(tile_count * (b + 1) / blocks * tile, tokens) - first;
            multiply(group, b + 1 < blocks ? group : following, rows, tokens, first, count, acc);
            finish(first, count, first_output, outputs, sums{acc, count});
        }
    }

    // acc[panel][token][register] = products of the group's panels with tokens [first, first + count).
    void multiply(std::size_t group, std::size_t following, const std::byte* rows, std::size_t tokens,
                  std::size_t first, std::size_t count, float* acc) const noexcept {
        const std::size_t panel = group * weights_.group_panels(), panels = weights_.panels_in(group);
        const std::size_t together =
            count <= weights_.kernels().side_by_side.tokens ? panels / panels_at_once * panels_at_once : 0;
        multiply_few(panel, together, rows, tokens, first, count, acc);
        multiply_many(panel + together, panels - together, following, rows, tokens, first, count,
                      acc + together * count * packed::panel_numbers);
    }

    // A multiple of panels_at_once, as so many streams of memory. They need not be asked for: the hardware
    // follows them better by itself.
    void multiply_few(std::size_t panel, std::size_t panels, const std::byte* rows, std::size_t tokens,
                      std::size_t first, std::size_t count, float* acc) const noexcept {
        const panel_kernels& kernels = weights_.kernels();
        const std::size_t panel_sums = count * packed::panel_numbers;
        for (std::size_t p = 0; p < panels; p += panels_at_once)
            for (std::size_t k0 = 0; k0 < weights_.inputs(); k0 += depth_block) {
                const std::byte* const x =
                    rows + (k0 / depth_block * tokens + first) * kernels.rows.row_bytes;
                const std::byte* const w = weights_.block(panel + p, k0);
                const std::size_t depth = weights_.depth(k0);
                kernels.side_by_side.of[count - 1](x, depth, w, weights_.panel_bytes(), acc + p * panel_sums,
                                                   k0 == 0, {});
            }
    }

    // One block of a panel after the other passes the tiles of all tokens, while the next one is asked for.
    void multiply_many(std::size_t panel, std::size_t panels, std::size_t following, const std::byte* rows,
                       std::size_t tokens, std::size_t first, std::size_t count, float* acc) const noexcept {
        const panel_kernels& kernels = weights_.kernels();
        const tile_set& tiles = kernels.tiles_for(tokens);
        const std::size_t tile_count = (count + tiles.tokens - 1) / tiles.tokens;
        const std::size_t row_tiles = (count + tiles.rows - 1) / tiles.rows;
        const bool unpacked = &tiles == &kernels.many && kernels.unpack != nullptr;
        auto* const wide = reinterpret_cast<std::byte*>(acc + sum_numbers(tokens));
        const std::size_t depths = (weights_.inputs() + depth_block - 1) / depth_block;
        // Panel by panel while the inputs of all depths stay in the second-level cache, as memory is then
        // read from front to back; depth by depth beyond, as the inputs of one then serve all panels.
        const bool by_panel = count <= 48;
        const auto place = [&](std::size_t i) {
            return by_panel ? std::pair(i / depths, i % depths) : std::pair(i % panels, i / panels);
        };
        const auto block = [&](std::size_t i) {
            return weights_.block(panel + place(i).first, place(i).second * depth_block);
        };
        // The inputs of the next depth, or of the tokens that come next, of which each tile asks for its share: a
        // tile reads as many streams as it has tokens, more than the hardware follows (Zen 4, SwiGLU 2048x8192,
        // 512 tokens, one thread: 5 % less time in f32 and in bf16, up to 10 beside other programs). Not where they fit
        // a second-level cache (Zen 3, SwiGLU 1024x2816, 64 and 256 tokens: 1 to 2 % less time). Inlined, as g++ 12
        // leaves out functions that do nothing else.
        const bool asks_ahead = !by_panel && depths * tokens * kernels.rows.row_bytes > 1024 * 1024;
        const std::size_t shares = panels * tile_count, row_lines = count * kernels.rows.row_bytes / 64;
        const auto ask_for_rows = [&](std::size_t n, std::size_t share) __attribute__((always_inline)) {
            const std::size_t next = n + 1 < depths ? (n + 1) * tokens + first : (first + count) % tokens;
            const std::byte* const from = rows + next * kernels.rows.row_bytes;
            for (std::size_t l = row_lines * share / shares; l < row_lines * (share + 1) / shares; ++l)
                __builtin_prefetch(from + l * 64, 0, 2);
        };
        for (std::size_t i = 0; i < panels * depths; ++i) {
            const auto [p, n] = place(i);
            const std::size_t depth = weights_.depth(n * depth_block);
            const std::size_t bytes = kernels.bytes(depth * packed::panel_numbers);
            const std::size_t steps = std::max<std::size_t>(depth / ask_every, 1) * tile_count;
            const std::size_t lines = (bytes / 64 + steps - 1) / steps;
            const std::byte* soon = i + 1 < panels * depths ? block(i + 1)
                                    : following < weights_.groups()
                                        ? weights_.block(following * weights_.group_panels(), 0)
                                        : nullptr;
            const std::byte* w = block(i);
            if (unpacked) {
                kernels.unpack(w, depth, wide);
                w = wide;
            }
            for (std::size_t j = 0, done = 0; j < tile_count; ++j) {
                const std::size_t until = std::min(row_tiles * (j + 1) / tile_count * tiles.rows, count);
                const std::size_t skip = j * (depth / ask_every) * lines * 64;
                const bool fetch = soon != nullptr && skip + 64 <= bytes;
                if (asks_ahead) ask_for_rows(n, p * tile_count + j);
                tiles.of[until - done - 1](rows + (n * tokens + first + done) * kernels.rows.row_bytes, depth,
                                           w, 0, acc + (p * count + done) * packed::panel_numbers, n == 0,
                                           fetch ? ahead{soon + skip, lines} : ahead{});
                done = until;
            }
        }
    }

    packed weights_;
};

}  // namespace simd_detail

TIFFIN_END
