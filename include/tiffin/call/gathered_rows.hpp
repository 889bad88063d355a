// Rows of a token table that were read for the tokens of one call.
#pragma once

#include <tiffin/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

TIFFIN_BEGIN

// `count` rows of `width` values, `stride` bytes apart, and the index from tokens to rows.
// Views only: valid as long as the memory they were gathered into.
struct gathered_rows {
    const std::byte* data = nullptr;
    std::size_t count = 0;
    std::size_t stride = 0;
    std::size_t width = 0;
    dtype type = dtype::f32;
    // (T), each in [0, count); for a row router (T, choices), one row per choice.
    std::span<const std::int32_t> index{};

    // The row of token t, or that of choice t % choices of token t / choices.
    [[nodiscard]] const std::byte* row(std::size_t t) const noexcept {
        return data + static_cast<std::size_t>(index[t]) * stride;
    }
    // From the beginning of the first row to the end of the last.
    [[nodiscard]] std::size_t bytes() const noexcept {
        return count == 0 ? 0 : (count - 1) * stride + bytes_of(type, width);
    }
    // A range of columns of every row: of a token-major table, the columns of one layer.
    // Precondition: `first` and `numbers` are multiples of the format's block and lie in the row.
    [[nodiscard]] gathered_rows columns(std::size_t first, std::size_t numbers) const noexcept {
        gathered_rows part = *this;
        part.data += bytes_of(type, first);
        part.width = numbers;
        return part;
    }
};

TIFFIN_END
