// Rows of a token table that were read for the tokens of one call.
#pragma once

#include <tiffin/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

TIFFIN_BEGIN

// `count` rows of `width` numbers, `stride` bytes from one to the next, and which of them is each token's.
// Views only: they live as long as what they were gathered into.
struct gathered_rows {
    const std::byte* data = nullptr;
    std::size_t count = 0;
    std::size_t stride = 0;
    std::size_t width = 0;
    dtype type = dtype::f32;
    // (T), each in [0, count); of rows that a router of rows chooses (T, choices), each choice's in its place.
    std::span<const std::int32_t> index{};

    // Where the row of token t begins, or that of choice t % choices of token t / choices.
    [[nodiscard]] const std::byte* row(std::size_t t) const noexcept {
        return data + static_cast<std::size_t>(index[t]) * stride;
    }
    // From the beginning of the first row to the end of the last.
    [[nodiscard]] std::size_t bytes() const noexcept {
        return count == 0 ? 0 : (count - 1) * stride + bytes_of(type, width);
    }
    // Some numbers of every row: of a token-major table, those of one layer.
    // Precondition: `first` and `numbers` are multiples of the format's block and lie in the row.
    [[nodiscard]] gathered_rows columns(std::size_t first, std::size_t numbers) const noexcept {
        gathered_rows part = *this;
        part.data += bytes_of(type, first);
        part.width = numbers;
        return part;
    }
};

TIFFIN_END
