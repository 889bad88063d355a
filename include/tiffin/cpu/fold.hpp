// Folding: a source that depends on the token id alone, computed once per id into a table.
#pragma once

#include <tiffin/bind/binder.hpp>
#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/error.hpp>
#include <tiffin/executor/checked_executor.hpp>
#include <tiffin/executor/hardware_threads.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// The result of fold(): table rows (vocab, width), one per token id. Its own type, so that it is not folded again.
struct folded_table {
    std::vector<float> rows;
    std::size_t vocab = 0;
    std::size_t width = 0;

    [[nodiscard]] tensor_view view() const noexcept { return {rows.data(), dtype::f32, {vocab, width}}; }
};

// Reports progress: rows done, and rows in all.
using fold_progress = std::function<void(std::size_t done, std::size_t rows)>;

namespace detail {

// Whether a source reads x or another input of the call. In a chain only the first part reads the chain's input.
constexpr bool depends_on_call(const node_kind& kind, bool reads_x = true) noexcept {
    for (const node_tensor& t : kind.tensors) {
        if (t.kind == tensor_kind::given || reads_row(t.kind)) return true;
        if (reads_x &&
            std::find(t.axes.begin(), t.axes.begin() + t.rank, axis::input) != t.axes.begin() + t.rank)
            return true;
    }
    if (kind.role == node_role::residual || kind.role == node_role::delay) return true;
    for (std::size_t i = 0; i < kind.parts.size(); ++i)
        if (depends_on_call(*kind.parts[i].kind, reads_x && (kind.role != node_role::chain || i == 0)))
            return true;
    return false;
}

using folding_machine = simd_detail::machine<simd_detail::default_arch>;

inline result<folded_table> fold_plan(const plan_node& source, const weights& given,
                                      const std::string& prefix, const fold_progress& progress,
                                      executor_ref execute) {
    if (depends_on_call(*source.kind))
        return failure(errc::option, prefix,
                       "reads x or an input of the call; what is folded depends on the token id alone");
    if (const status s = check_given(given); !s) return s.failure();
    binder from(given);
    bind_position at = from.outermost();
    at.prefix = prefix;
    at.width = from.sizes().fresh("width", prefix);
    bound_node bound;
    if (status s = from.bind(source, at, bound); !s) return s.failure();
    if (status s = from.settle(bound); !s) return s.failure();
    if (!from.needs().gathered.empty())
        return failure(errc::option, from.needs().gathered[0].name,
                       "comes with each call; a table is folded from rows in memory");
    folded_table made;
    made.width = bound.width;
    made.vocab = from.sizes()[at.vocab];
    checked_executor checked(execute);
    const preparation how{simd<>{}.formats(), checked};
    const auto rows = cpu_detail::make_rows<folding_machine>(source, bound, {made.width, 0, 0}, how);
    constexpr std::size_t piece = 64;
    const std::size_t workers = execute.concurrency() ? execute.concurrency() : hardware_threads();
    aligned_buffer memory(rows->workspace_bytes(piece, workers) + 64);
    std::array<std::int32_t, piece> ids{};
    made.rows.resize(made.vocab * made.width);
    for (std::size_t first = 0; first < made.vocab; first += piece) {
        const std::size_t count = std::min(piece, made.vocab - first);
        for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>(first + i);
        const call_arguments call{
            .token_ids = ids.data(), .tokens = count, .workers = workers, .execute = checked};
        rows->run(call, {nullptr, count}, memory.data(),
                  {{made.rows.data() + first * made.width, count, made.width}});
        if (const status s = checked.done(); !s) return s.failure();
        if (progress) progress(first + count, made.vocab);
    }
    return made;
}

}  // namespace detail

// Folds a source: table[t] = Source(t) for every token id t.
// Shapes: the source's tensors by name under `prefix`, the result (vocab, width).
//   Other tensors in `given` are ignored.
// Numerics: those of `simd`, to the bit: a layer with the folded table computes the bits of the layer with the
//   source. Errors: those of prepare().
// Cost: evaluates the source once per row; memory for the table, the packed source and the workspace of 64 rows.
// Source: MeKi Eq. 10, ReToken Eq. 8; docs/layers.md#folding.
//
//     auto table = fold(trained_memory<>{}, weights);
template <source_policy Source>
result<folded_table> fold(const Source& source, const weights& given, const std::string& prefix = "",
                          const fold_progress& progress = {}, executor_ref execute = serial{}) {
    static_assert(detail::has_role<Source, runtime_role> || !detail::depends_on_call(detail::kind_of<Source>),
                  "tiffin: fold(source, weights): the source reads x or an input of the call; only what "
                  "depends on the token id alone can be folded");
    const plan_node plan = lower<detail::folding_machine>(source);
    return detail::fold_plan(plan, given, prefix, progress, execute);
}

template <class... Rest>
void fold(const folded_table&, const Rest&...) {
    static_assert(
        sizeof...(Rest) == ~std::size_t{0},
        "tiffin: fold(table): this table is folded already; a second fold would norm and scale it again");
}

TIFFIN_END
