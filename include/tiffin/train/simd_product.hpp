// Matrix products in training: the kernels of `simd`, on panels packed in every call, as all factors change per step.
#pragma once

#include <tiffin/cpu/simd/weight_kernels.hpp>
#include <tiffin/train/factor_layout.hpp>
#include <tiffin/train/training_call.hpp>
#include <tiffin/train/transpose.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

TIFFIN_BEGIN

namespace train_detail {

// c (m, n) (+)= sum_k a(i, k) b(j, k), the factors in Format: f32, or rounded to bf16; sums in f32.
//
// a is copied once, in blocks of the depth k. Each task then computes a group of columns of c: it packs their part of b
// into panels that stay in the L2 cache, and multiplies them by tiles of rows of a.
// Numerics: k ascending, one fused multiply-add per term and one accumulator per element, for any m, n and workers.
// Cost: 2 m n k operations; a is copied once; b is packed once, or once per `most_rows` rows where k > `most_depth`.
template <class Arch, class Format = f32>
class simd_product {
    using layout = factor_layout<Format>;
    using storage = typename layout::storage;
    static constexpr std::size_t panel_outputs = simd_detail::panel_registers * simd_detail::width<Arch>;
    static constexpr std::size_t depth_block = simd_detail::depth_block;
    static constexpr std::size_t group = std::max<std::size_t>(256, panel_outputs);  // columns per task
    static constexpr std::size_t most_depth = 1024;                                  // packed at once
    static constexpr std::size_t transpose_ratio = 4;           // transposed if m > this n
    static constexpr std::size_t rows_at_once = 96;             // whole tiles; rows and sums fit the cache
    static constexpr std::size_t most_rows = 6 * rows_at_once;  // rows of sums kept across `most_depth`

public:
    // Scratch bytes for m rows or fewer.
    static std::size_t bytes(std::size_t m, std::size_t n, std::size_t k, std::size_t workers) noexcept {
        step_memory areas, turned;
        if (is_transposed(m, n)) lay_out(turned, n, m, k, workers);
        lay_out(areas, is_transposed(m, n) ? transpose_ratio * n : m, n, k, workers);
        return std::max(areas.used(), turned.used());
    }
    static void run(const training_call<float>& call, std::size_t m, std::size_t n, std::size_t k,
                    const factor<float>& a, const factor<float>& b, float* c, bool add, std::byte* memory) {
        // Many rows with few columns: compute the transpose, as the rows are read again for every group of columns.
        if (is_transposed(m, n))
            multiply(call, n, m, k, b, a, c, add, true, memory);
        else
            multiply(call, m, n, k, a, b, c, add, false, memory);
    }

private:
    static void multiply(const training_call<float>& call, std::size_t m, std::size_t n, std::size_t k,
                         const factor<float>& a, const factor<float>& b, float* c, bool add, bool turned,
                         std::byte* memory) {
        step_memory from(memory);
        const areas at = lay_out(from, m, n, k, call.workers);
        lay_out_rows(call, m, k, a, at.rows);
        // The same number of groups per worker, with panels as equal as possible.
        const std::size_t all_panels = (n + panel_outputs - 1) / panel_outputs;
        const std::size_t at_once = std::min(call.workers, all_panels);
        const std::size_t rounds = ((n + group - 1) / group + at_once - 1) / at_once;
        const std::size_t groups = std::min(rounds * at_once, all_panels);
        const auto work = [&](std::size_t worker) noexcept {
            storage* const packed = at.packed + worker * packed_numbers(k);
            float* const staged = at.staged + worker * staged_numbers;
            float* const sums = at.sums + worker * sum_numbers(m, k);
            // Consecutive groups: strided ones could give one worker all the larger groups.
            for (std::size_t g = groups * worker / at_once; g < groups * (worker + 1) / at_once; ++g) {
                const std::size_t j0 = all_panels * g / groups * panel_outputs;
                const std::size_t j1 = std::min(n, all_panels * (g + 1) / groups * panel_outputs);
                columns({m, n, k, c, add, turned, at.rows, packed, staged, sums, j0, j1 - j0}, b);
            }
        };
        call.execute(at_once, task_ref(work));
    }
    static constexpr bool is_transposed(std::size_t m, std::size_t n) noexcept {
        return m > transpose_ratio * n && n >= group;
    }

    struct areas {
        storage *rows, *packed;
        float *staged, *sums;
    };
    struct work {
        std::size_t m, n, k;
        float* c;
        bool add, turned;
        const storage* rows;
        storage* packed;
        float *staged, *sums;
        std::size_t j0, columns;  // of this task

        [[nodiscard]] std::size_t panels() const noexcept {
            return (columns + panel_outputs - 1) / panel_outputs;
        }
    };
    static constexpr std::size_t packed_numbers(std::size_t k) noexcept {
        const std::size_t blocks = (std::min(k, most_depth) + depth_block - 1) / depth_block;
        return group * blocks * depth_block;
    }
    static constexpr std::size_t sum_numbers(std::size_t m, std::size_t k) noexcept {
        return std::min(m, k > most_depth ? most_rows : rows_at_once) * group;
    }
    // A format that rounds is laid out as f32 first, one depth block at a time.
    static constexpr std::size_t staged_numbers = layout::rounds ? group * depth_block : 0;
    static areas lay_out(step_memory& from, std::size_t m, std::size_t n, std::size_t k,
                         std::size_t workers) noexcept {
        const std::size_t tasks = std::min(workers, (n + panel_outputs - 1) / panel_outputs);
        storage* const rows = from.take<storage>((k + depth_block - 1) / depth_block * depth_block * m);
        storage* const packed = from.take<storage>(tasks * packed_numbers(k));
        float* const staged = from.take<float>(tasks * staged_numbers);
        return {rows, packed, staged, from.take<float>(tasks * sum_numbers(m, k))};
    }

    // Row i of depth block b begins at (b m + i) depth_block.
    static void lay_out_rows(const training_call<float>& call, std::size_t m, std::size_t k,
                             const factor<float>& a, storage* to) {
        constexpr std::size_t at_once = 32;
        call.each((m + at_once - 1) / at_once, [&](std::size_t task) {
            alignas(64) std::array<float, layout::rounds ? at_once * depth_block : 1> staged;
            const std::size_t first = task * at_once, count = std::min(m - first, at_once);
            for (std::size_t k0 = 0; k0 < k; k0 += depth_block) {
                const std::size_t depth = std::min(depth_block, k - k0);
                storage* const rows = to + (k0 * m + first * depth_block);
                float* const block = stage(rows, staged.data());
                if (a.transposed)
                    transpose(a.data + k0 * a.stride + first, a.stride, depth, count, block, depth_block);
                else
                    for (std::size_t i = 0; i < count; ++i)
                        std::memcpy(block + i * depth_block, a.data + (first + i) * a.stride + k0,
                                    depth * sizeof(float));
                for (std::size_t i = 0; layout::rounds && i < count; ++i)
                    layout::round_row(block + i * depth_block, depth, rows + i * depth_block);
            }
        });
    }
    // Destination of the f32 layout: `place`, or `staged` where it is rounded afterwards.
    static float* stage([[maybe_unused]] storage* place, float* staged) noexcept {
        if constexpr (!layout::rounds) staged = place;
        return staged;
    }
    // The columns of b of this task, from k0 on, as panels; columns beyond the last are zeros.
    static void pack(const factor<float>& b, const work& w, std::size_t k0, std::size_t depth,
                     float* to) noexcept {
        if (b.transposed && w.columns % panel_outputs == 0) return pack_rows(b, w, k0, depth, to);
        for (std::size_t p = 0; p < w.panels(); ++p, to += depth_block * panel_outputs) {
            const std::size_t j = w.j0 + p * panel_outputs, count = std::min(w.n - j, panel_outputs);
            if (count < panel_outputs) std::fill_n(to, depth * panel_outputs, 0.0f);
            for (std::size_t k = 0; b.transposed && k < depth; ++k)
                std::memcpy(to + k * panel_outputs, b.data + (k0 + k) * b.stride + j, count * sizeof(float));
            if (!b.transposed)
                transpose(b.data + j * b.stride + k0, b.stride, count, depth, to, panel_outputs);
        }
    }
    // The same, b read row by row. Each row is in another page, which the hardware does not prefetch. Blocks of
    // `together` rows, panel by panel: the panels of one row would map to one set of the cache.
    static void pack_rows(const factor<float>& b, const work& w, std::size_t k0, std::size_t depth,
                          float* to) noexcept {
        constexpr std::size_t together = 16, line = 64 / sizeof(float);
        const float* const from = b.data + k0 * b.stride + w.j0;
        for (std::size_t k = 0; k < depth; k += together) {
            const std::size_t end = std::min(depth, k + together), ahead = std::min(depth, end + together);
            for (std::size_t r = end; r < ahead; ++r)
                for (std::size_t l = 0; l < w.columns; l += line) __builtin_prefetch(from + r * b.stride + l);
            for (std::size_t p = 0; p < w.panels(); ++p)
                for (std::size_t r = k; r < end; ++r)
                    std::memcpy(to + (p * depth_block + r) * panel_outputs,
                                from + r * b.stride + p * panel_outputs, panel_outputs * sizeof(float));
        }
    }
    static void pack_rounded(const factor<float>& b, const work& w, std::size_t k0, std::size_t depth,
                             storage* to) noexcept {
        float* const f32_panels = stage(to, w.staged);
        pack(b, w, k0, depth, f32_panels);
        for (std::size_t p = 0; layout::rounds && p < w.panels(); ++p)
            layout::round_panel(f32_panels + p * depth_block * panel_outputs, depth, panel_outputs,
                                to + p * depth_block * panel_outputs);
    }
    static void columns(const work& w, const factor<float>& b) noexcept {
        for (std::size_t r0 = 0; r0 < w.m; r0 += most_rows)
            for (std::size_t k0 = 0; k0 < w.k; k0 += most_depth) {
                const std::size_t depth = std::min(most_depth, w.k - k0);
                if (r0 == 0 || w.k > most_depth)
                    for (std::size_t k = 0; k < depth; k += depth_block)
                        pack_rounded(b, w, k0 + k, std::min(depth_block, depth - k), w.packed + k * group);
                for (std::size_t i0 = r0; i0 < std::min(w.m, r0 + most_rows); i0 += rows_at_once) {
                    const std::size_t rows = std::min(rows_at_once, w.m - i0);
                    float* const sums = w.sums + (w.k > most_depth ? (i0 - r0) * group : 0);
                    for (std::size_t k = 0; k < depth; k += depth_block)
                        multiply_tiles(w.rows + (k0 + k) * w.m + i0 * depth_block, rows,
                                       std::min(depth_block, depth - k), w.packed + k * group, w.panels(),
                                       sums, k0 + k == 0);
                    if (k0 + depth == w.k) store(w, sums, i0, rows);
                }
            }
    }
    static void multiply_tiles(const storage* rows, std::size_t count, std::size_t depth,
                               const storage* packed, std::size_t panels_used, float* sums,
                               bool fresh) noexcept {
        const simd_detail::tile_set& tiles = simd_detail::kernels<Arch, Format, Format>().tiles_for(count);
        // A panel stays in the L1 cache while all tiles of rows are multiplied by it.
        for (std::size_t p = 0; p < panels_used; ++p)
            for (std::size_t i = 0, n; i < count; i += n) {
                n = std::min(tiles.tokens, count - i);
                tiles.of[n - 1](reinterpret_cast<const std::byte*>(rows + i * depth_block), depth,
                                reinterpret_cast<const std::byte*>(packed + p * depth_block * panel_outputs),
                                0, sums + i * group + p * n * panel_outputs, fresh, {});
            }
    }
    // Copies sums from tile order to rows of c, or to columns where the product is transposed.
    static void store(const work& w, const float* sums, std::size_t i0, std::size_t count) noexcept {
        const std::size_t tile = simd_detail::kernels<Arch, Format, Format>().tiles_for(count).tokens;
        for (std::size_t i = 0; i < count; i += tile) {
            const std::size_t n = std::min(tile, count - i);
            if (w.add && !w.turned) ask_for(w, i0, count, i + tile);
            for (std::size_t p = 0; p < w.panels(); ++p) {
                const std::size_t j = w.j0 + p * panel_outputs;
                const std::size_t columns = std::min(w.n - j, panel_outputs);
                const float* const from = sums + i * group + p * n * panel_outputs;
                if (w.turned)
                    add_transposed<panel_outputs * simd_detail::most_accumulators>(
                        from, panel_outputs, n, columns, w.c + j * w.m + i0 + i, w.m, w.add);
                else
                    for (std::size_t r = 0; r < n; ++r)
                        add_row(from + r * panel_outputs, columns, w.c + (i0 + i + r) * w.n + j, w.add);
            }
        }
    }
    // Prefetches the rows of c that the next tile adds to: they are a row stride apart.
    static void ask_for(const work& w, std::size_t i0, std::size_t count, std::size_t from) noexcept {
        const std::size_t to =
            std::min(count, from + simd_detail::most_accumulators / simd_detail::panel_registers);
        for (std::size_t i = from; i < to; ++i)
            for (std::size_t l = 0; l < w.columns; l += 64 / sizeof(float))
                __builtin_prefetch(w.c + (i0 + i) * w.n + w.j0 + l, 1);
    }
};

}  // namespace train_detail

TIFFIN_END
