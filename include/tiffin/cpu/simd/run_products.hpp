// Definitions of products.hpp: splits groups of panels among tasks and multiplies each group with all tokens.
#pragma once

#include <tiffin/cpu/simd/products.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

TIFFIN_BEGIN

namespace simd_detail {

TIFFIN_INLINE packed_weights::packed_weights(std::size_t outputs, std::size_t inputs, std::size_t count,
                                             std::size_t group_panels, const weight_kernels& kernels)
    : outputs_(outputs),
      inputs_(inputs),
      count_(count),
      panel_outputs_(panel_registers / count * kernels.lanes),
      packed_inputs_((inputs + kernels.step - 1) / kernels.step * kernels.step),
      group_panels_(group_panels),
      panels_((outputs + panel_outputs_ - 1) / panel_outputs_),
      kernels_(&kernels),
      buffer_(kernels.bytes(panels_ * packed_inputs_ * panel_numbers())) {}

TIFFIN_INLINE void packed_weights::pack(std::size_t which, const tensor_view& weight,
                                        const preparation& how) {
    constexpr std::size_t at_once = 8;  // panels of a task: tens of microseconds
    const auto work = [&](std::size_t task) noexcept {
        for (std::size_t p = task * at_once; p < std::min(panels_, (task + 1) * at_once); ++p)
            for (std::size_t k0 = 0; k0 < inputs_; k0 += depth_block)
                kernels_->pack({weight, outputs_, inputs_, p * panel_outputs_, panel_outputs_, k0, depth(k0)},
                               which * panel_outputs_, buffer_.data() + offset(p, k0));
    };
    how.execute((panels_ + at_once - 1) / at_once, task_ref(work));
    how.hold(buffer_.size() / count_);
}

// Panels per group: few enough to split the groups evenly, many enough to reuse the inputs; a multiple of
// panels_at_once where there are enough.
inline std::size_t group_size(std::size_t panels) noexcept {
    const std::size_t even = panels / 16;
    return even >= 2 * panels_at_once ? 2 * panels_at_once : even >= panels_at_once / 2 ? panels_at_once : 1;
}

TIFFIN_INLINE panel_products::panel_products(std::size_t outputs, std::size_t inputs, std::size_t count,
                                             const weight_kernels& kernels) {
    // A group has the same outputs in every pack: a panel of one weight has as many as two panels of two.
    const std::size_t registers = outputs / kernels.lanes;
    const std::size_t of_two = std::max(group_size(registers), 1 + count % 2),
                      of_one = count == 1 ? group_size(registers / panel_registers) : of_two / 2;
    for (std::size_t first = 0; first < count; first += 2) {
        const std::size_t weights = std::min<std::size_t>(count - first, 2);
        packs_.emplace_back(outputs, inputs, weights, weights == 1 ? of_one : of_two, kernels);
    }
}

TIFFIN_INLINE std::size_t panel_products::scratch_numbers(std::size_t tokens,
                                                          std::size_t most_workers) const noexcept {
    return rounded_numbers(tokens) + std::min(most_workers, first().groups()) * floats_per_worker(tokens);
}

// The floats that rounded activations take.
TIFFIN_INLINE std::size_t panel_products::rounded_numbers(std::size_t tokens) const noexcept {
    const rounding& how = first().kernels().rows;
    return how.round == nullptr ? 0 : how.bytes(tokens, first().inputs()) / sizeof(float);
}

TIFFIN_INLINE std::size_t panel_products::sum_numbers(const packed_weights& pack,
                                                      std::size_t tokens) const noexcept {
    return std::min(tokens, token_block(pack.kernels().rows.row_bytes)) * pack.group_panels() *
           pack.panel_numbers();
}

// The floats of a worker: sums, then an unpacked block of weights.
TIFFIN_INLINE std::size_t panel_products::floats_per_worker(std::size_t tokens) const noexcept {
    std::size_t numbers = first().kernels().unpack == nullptr ? 0 : depth_block * first().panel_numbers();
    for (const packed_weights& pack : packs_) numbers += sum_numbers(pack, tokens);
    return numbers;
}

TIFFIN_INLINE void panel_products::run(const activations& in, float* scratch, std::size_t most_workers,
                                       const executor_ref& execute,
                                       const cpu_detail::epilogue_ref& finish) const {
    const std::byte* const rows = round(in, scratch, most_workers, execute);
    scratch += rounded_numbers(in.tokens);
    const tile_set& tiles = first().kernels().tiles_for(in.tokens);
    const std::size_t groups = first().groups(), workers = std::min(most_workers, groups);
    const std::size_t numbers = floats_per_worker(in.tokens);
    std::atomic<std::size_t> next{workers};
    const auto work = [&](std::size_t worker) noexcept {
        float* const mine = scratch + worker * numbers;
        // The group after this one is claimed early, so that its first weights can be prefetched. Nobody claims two
        // while others have none: the first is given.
        std::size_t group = worker;
        while (group < groups) {
            const std::size_t following = next.fetch_add(1, std::memory_order_relaxed);
            run_group(group, following, rows, in.tokens, mine, finish);
            group = following;
        }
    };
    const auto inside = [&](std::size_t worker) noexcept { tiles.around(task_ref(work), worker); };
    execute(workers, tiles.around == nullptr ? task_ref(work) : task_ref(inside));
}

// Rounds the activations once, unless they stay f32 or are rounded already; a single token's without a hand-over,
// which would take longer.
TIFFIN_INLINE const std::byte* panel_products::round(const activations& in, float* to,
                                                     std::size_t most_workers,
                                                     const executor_ref& execute) const {
    const rounding& how = first().kernels().rows;
    if (how.round == nullptr) return reinterpret_cast<const std::byte*>(in.data);
    auto* const rows = in.rounded != nullptr ? in.rounded : reinterpret_cast<std::byte*>(to);
    const std::size_t spare = how.spare_rows * how.row_bytes;
    std::fill_n(rows + how.bytes(in.tokens, first().inputs()) - spare, spare, std::byte{0});
    if (in.rounded != nullptr) return rows;
    const std::size_t tasks = std::min(in.tokens, most_workers);
    const auto work = [&](std::size_t task) noexcept {
        for (std::size_t t = in.tokens * task / tasks; t < in.tokens * (task + 1) / tasks; ++t)
            for (std::size_t k0 = 0; k0 < first().inputs(); k0 += depth_block)
                how(in.row(k0, t), in.tokens, t, k0, std::min(depth_block, first().inputs() - k0), rows);
    };
    execute(tasks, task_ref(work));
    return rows;
}

TIFFIN_INLINE void panel_products::run_group(std::size_t group, std::size_t following, const std::byte* rows,
                                             std::size_t tokens, float* acc,
                                             const cpu_detail::epilogue_ref& finish) const noexcept {
    const std::size_t first_output = group * outputs_at_once();
    const std::size_t outputs = std::min(outputs_at_once(), first().outputs() - first_output);
    // Blocks of whole tiles, as a smaller tile uses fewer of the registers.
    const std::size_t tile = first().kernels().tiles_for(tokens).tokens;
    const std::size_t tile_count = (tokens + tile - 1) / tile;
    const std::size_t most = token_block(first().kernels().rows.row_bytes);
    const std::size_t blocks = (tokens + most - 1) / most;
    const std::size_t pair_step = sum_numbers(first(), tokens), numbers = first().panel_numbers();
    float* const last = acc + (packs_.size() - 1) * pair_step;
    auto* const unpacked = reinterpret_cast<std::byte*>(last + sum_numbers(packs_.back(), tokens));
    for (std::size_t b = 0; b < blocks; ++b) {
        const std::size_t from = tile_count * b / blocks * tile;
        const std::size_t count = std::min(tile_count * (b + 1) / blocks * tile, tokens) - from;
        for (std::size_t p = 0; p < packs_.size(); ++p) {
            // What is multiplied after this: the next weights, the next tokens, or the next group.
            const bool same_group = p + 1 < packs_.size() || b + 1 < blocks;
            const std::size_t then = same_group ? group : following;
            const packed_weights& soon = packs_[(p + 1) % packs_.size()];
            const std::byte* const next =
                then < soon.groups() ? soon.block(then * soon.group_panels(), 0) : nullptr;
            packs_[p].multiply(group, {rows, tokens, from, count}, next, acc + p * pair_step, unpacked);
        }
        const auto sums_of = [&](const packed_weights& pack, const float* data) {
            return cpu_detail::weight_sums{data, pack.panel_outputs(), numbers, count * numbers};
        };
        finish(from, count, first_output, outputs,
               {sums_of(first(), acc), first().panel_outputs(), pair_step, sums_of(packs_.back(), last)});
    }
}

// acc[panel][token][register] = products of the group's panels with tokens [first, first + count).
TIFFIN_INLINE void packed_weights::multiply(std::size_t group, const token_rows& of, const std::byte* next,
                                            float* acc, std::byte* unpacked) const noexcept {
    const std::size_t panel = group * group_panels_, panels = panels_in(group);
    const std::size_t together =
        of.count <= kernels_->side_by_side.tokens ? panels / panels_at_once * panels_at_once : 0;
    multiply_few(panel, together, of, acc);
    multiply_many(panel + together, panels - together, of, next, acc + together * of.count * panel_numbers(),
                  unpacked);
}

// Panels are a multiple of panels_at_once, read as that many parallel memory streams, without software prefetch: the
// hardware prefetcher does better alone.
TIFFIN_INLINE void packed_weights::multiply_few(std::size_t panel, std::size_t panels, const token_rows& of,
                                                float* acc) const noexcept {
    const std::size_t panel_sums = of.count * panel_numbers();
    for (std::size_t p = 0; p < panels; p += panels_at_once)
        for (std::size_t k0 = 0; k0 < inputs_; k0 += depth_block) {
            const std::byte* const x =
                of.rows + (k0 / depth_block * of.tokens + of.first) * kernels_->rows.row_bytes;
            kernels_->side_by_side.of[of.count - 1](x, depth(k0), block(panel + p, k0), panel_bytes(),
                                                    acc + p * panel_sums, k0 == 0, {});
        }
}

// Multiplies one panel block after the other with the tiles of all tokens, while the next block is prefetched.
TIFFIN_INLINE void packed_weights::multiply_many(std::size_t panel, std::size_t panels, const token_rows& of,
                                                 const std::byte* next, float* acc,
                                                 std::byte* unpacked) const noexcept {
    const weight_kernels& kernels = *kernels_;
    const std::byte* const rows = of.rows;
    const std::size_t tokens = of.tokens, first = of.first, count = of.count;
    const std::size_t numbers = panel_numbers();
    const tile_set& tiles = kernels.tiles_for(tokens);
    const std::size_t tile_count = (count + tiles.tokens - 1) / tiles.tokens;
    const std::size_t row_tiles = (count + tiles.rows - 1) / tiles.rows;
    const bool unpacks = &tiles == &kernels.many && kernels.unpack != nullptr;
    const std::size_t depths = (inputs_ + depth_block - 1) / depth_block;
    // Panel by panel while the inputs of all depths stay in the second-level cache, as memory is then
    // read from front to back; depth by depth beyond, as the inputs of one then serve all panels.
    const bool by_panel = count <= 48;
    const auto place = [&](std::size_t i) {
        return by_panel ? std::pair(i / depths, i % depths) : std::pair(i % panels, i / panels);
    };
    const auto block_of = [&](std::size_t i) {
        return block(panel + place(i).first, place(i).second * depth_block);
    };
    // Prefetches the inputs of the next depth, or of the next tokens, each tile its share: a tile reads as many
    // streams as it has tokens, more than the hardware prefetcher follows (Zen 4, SwiGLU 2048x8192, 512 tokens, one
    // thread: 5 % less time in f32 and in bf16, up to 10 beside other programs). Not where they fit a second-level
    // cache (Zen 3, SwiGLU 1024x2816, 64 and 256 tokens: 1 to 2 % less time). Inlined, as g++ 12 drops functions that
    // do nothing else.
    const bool prefetches_rows = !by_panel && depths * tokens * kernels.rows.row_bytes > 1024 * 1024;
    const std::size_t shares = panels * tile_count, row_lines = count * kernels.rows.row_bytes / 64;
    const auto prefetch_rows = [&](std::size_t n, std::size_t share) __attribute__((always_inline)) {
        const std::size_t soonest = n + 1 < depths ? (n + 1) * tokens + first : (first + count) % tokens;
        const std::byte* const from = rows + soonest * kernels.rows.row_bytes;
        for (std::size_t l = row_lines * share / shares; l < row_lines * (share + 1) / shares; ++l)
            __builtin_prefetch(from + l * 64, 0, 2);
    };
    for (std::size_t i = 0; i < panels * depths; ++i) {
        const auto [p, n] = place(i);
        const std::size_t deep = depth(n * depth_block);
        const std::size_t bytes = kernels.bytes(deep * numbers);
        const std::size_t steps = std::max<std::size_t>(deep / prefetch_every, 1) * tile_count;
        const std::size_t lines = (bytes / 64 + steps - 1) / steps;
        const std::byte* const soon = i + 1 < panels * depths ? block_of(i + 1) : next;
        const std::byte* w = block_of(i);
        if (unpacks) {
            kernels.unpack(w, deep, unpacked);
            w = unpacked;
        }
        for (std::size_t j = 0, done = 0; j < tile_count; ++j) {
            const std::size_t until = std::min(row_tiles * (j + 1) / tile_count * tiles.rows, count);
            const std::size_t skip = j * (deep / prefetch_every) * lines * 64;
            const bool fetch = soon != nullptr && skip + 64 <= bytes;
            if (prefetches_rows) prefetch_rows(n, p * tile_count + j);
            tiles.of[until - done - 1](rows + (n * tokens + first + done) * kernels.rows.row_bytes, deep, w,
                                       0, acc + (p * count + done) * numbers, n == 0,
                                       fetch ? ahead{soon + skip, lines} : ahead{});
            done = until;
        }
    }
}

}  // namespace simd_detail

TIFFIN_END
