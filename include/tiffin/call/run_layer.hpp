// How a layer runs a call: checks, then pieces that fit the workspace, each run by the layer's engine.
#pragma once

#include <tiffin/call/call_checks.hpp>
#include <tiffin/call/fitting_tokens.hpp>
#include <tiffin/call/layer_of_any_block.hpp>
#include <tiffin/executor/checked_executor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

TIFFIN_BEGIN

namespace detail {

TIFFIN_INLINE status layer_of_any_block::run(matrix_view<const float> x, const token_inputs& inputs,
                                             matrix_view<float> y, std::span<std::byte> memory,
                                             executor_ref execute) const {
    if (!engine_) return failure(errc::empty, "layer", "holds nothing: it was moved from");
    if (status s = check_call(needs_, x, inputs, y); !s) return s;
    if (x.rows == 0) return {};
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::size_t skip = (aligned_buffer::line - address % aligned_buffer::line) % aligned_buffer::line;
    const std::size_t room = memory.size() > skip ? memory.size() - skip : 0;
    const bool onto_x = is_same_matrix(x, y),
               onto_residual = needs_.residual && is_same_matrix(inputs.residual, y);
    // In a small workspace first the workers are reduced, then the tokens per piece; then the call fails.
    std::size_t workers = std::min(execute.concurrency() ? execute.concurrency() : workers_, most_workers);
    // The same pieces whether x and the residual are copied or not.
    const auto bytes = [&](std::size_t count) noexcept {
        return copies(count).used() + engine_->workspace_bytes(count, workers);
    };
    while (workers > 1 && bytes(1) > room) --workers;
    if (bytes(1) > room)
        return failure(errc::workspace, "workspace", "has ", memory.size(), " bytes; one token needs ",
                       workspace_bytes(1, 1));
    const std::size_t tokens = fitting_tokens(bytes, x.rows, room);
    const matrix_view<float> carried = needs_.delay ? inputs.carried->slot(x.rows) : matrix_view<float>{};
    checked_executor checked(execute);
    for (std::size_t first = 0; first < x.rows; first += tokens) {
        const std::size_t count = std::min(tokens, x.rows - first);
        call_arguments piece{.tokens = count, .workers = workers, .execute = checked};
        set_piece(piece, inputs, needs_.choices, first, count);
        piece.x = x.rows_from(first, count);
        piece.to = {y.rows_from(first, count)};
        arena<aligned_buffer::line> areas(memory.data() + skip);
        const auto copy = [&](matrix_view<const float>& of) {
            float* const rows = areas.take<float>(tokens * of.cols);
            for (std::size_t t = 0; t < count; ++t) std::copy_n(of.row(t), of.cols, rows + t * of.cols);
            of = {rows, count, of.cols};
        };
        if (onto_x) copy(piece.x);
        if (onto_residual) copy(piece.residual);
        piece.workspace = areas.rest();
        if (needs_.delay) piece.carried = carried.rows_from(first, count);
        piece.carried_is_due = needs_.delay != 0 && inputs.carried->due() != 0;
        engine_->run(piece);
        if (status s = checked.done(); !s) return s;
    }
    if (needs_.delay) inputs.carried->advance(x.rows);
    return {};
}

}  // namespace detail

TIFFIN_END
