// A source that depends on nothing but the token id, worked out for every id once: a table.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/call.hpp>
#include <tiffin/backend/simd/simd.hpp>
#include <tiffin/error.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// What fold() makes: rows (vocab, width), one a token id. A type of its own, so that it is not folded again.
struct folded_table {
    std::vector<float> rows;
    std::size_t vocab = 0;
    std::size_t width = 0;

    [[nodiscard]] tensor_view view() const noexcept { return {rows.data(), dtype::f32, {vocab, width}}; }
};

// Told how many rows are done, of how many.
using fold_progress = std::function<void(std::size_t done, std::size_t rows)>;

namespace detail {

// Whether a source reads x, or what a call gives beside it.
template <source_policy S>
constexpr bool depends_on_call() {
    for (const tensor_spec& spec : specs_of<S>(""))
        if (spec.depends_on_call()) return true;
    return false;
}

}  // namespace detail

// Folds a source: table[t] = Source(t) for every token id t.
// Shapes: the source's tensors by name under `prefix`, the result (vocab, width).
//   Other tensors may be given and are left alone.
// Numerics: those of `simd`, to the bit: a layer with the folded table gives what the layer with the
//   source gives. Errors: those of prepare().
// Cost: the source once a row; the table, the packed weights of the source and 64 rows of its steps.
// Source: MeKi Eq. 10, ReToken Eq. 8; SPEC 2.5 and 2.6.
//
//     auto table = fold(trained_memory<>{}, weights);
template <source_policy Source>
result<folded_table> fold(const Source& source, const weights& given, const std::string& prefix = "",
                          const fold_progress& progress = {}, executor_ref execute = serial{}) {
    static_assert(!detail::depends_on_call<Source>(),
                  "tiffin: fold(source, weights): the source reads x or an input of the call; only what "
                  "depends on the token id alone can be folded");
    static constexpr auto wanted = in_block(specs_of<Source>(""), extent::d_ff, extent::d_model);
    if (const status s = detail::check_given(given); !s) return s.failure();
    binder from(given);
    binding bound;
    detail::extents_seen extents;
    if (status s = from.bind_source(source, wanted, prefix, extents, bound); !s) return s.failure();
    if (!bound.gathered.empty())
        return failure{errc::option, bound.gathered[0].name,
                       "comes with each call; a table is folded from rows in memory"};
    folded_table made;
    made.width = extents.size(extent::d_ff);
    made.vocab = extents.size(extent::vocab);
    using machine = simd_detail::machine<f32, f32, f32, xsimd::default_arch>;
    const fused_detail::stage<machine, Source> stage(source, bound.tensors, {made.width, 0, {}});
    constexpr std::size_t piece = 64;
    const std::size_t workers = std::max<std::size_t>(
        execute.concurrency() ? execute.concurrency() : std::thread::hardware_concurrency(), 1);
    aligned_buffer memory(stage.workspace_bytes(piece, workers) + 64);
    std::array<std::int32_t, piece> ids{};
    made.rows.resize(made.vocab * made.width);
    for (std::size_t first = 0; first < made.vocab; first += piece) {
        const std::size_t count = std::min(piece, made.vocab - first);
        for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>(first + i);
        const call_arguments call{{}, ids.data(), {}, {},    nullptr,       0,       nullptr, count,
                                  {}, nullptr,    {}, false, memory.data(), workers, execute};
        stage.run(call, {nullptr, count}, memory.data(), nullptr,
                  [&](std::size_t t, std::size_t feature, const machine::reg& v, std::size_t n) {
                      machine::store(v, made.rows.data() + (first + t) * made.width + feature, n);
                  });
        if (progress) progress(first + count, made.vocab);
    }
    return made;
}

template <class... Rest>
void fold(const folded_table&, const Rest&...) {
    static_assert(
        sizeof...(Rest) == ~std::size_t{0},
        "tiffin: fold(table): this table is folded already; a second fold would norm and scale it again");
}

TIFFIN_END
