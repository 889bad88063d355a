// Rows of a token table that were read for the tokens of one call.
#pragma once

#include <tiffin/format/scales.hpp>

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
    // Of each row, `stride` bytes apart too. Null data: they follow the codes.
    tensor_scales scales{};
    std::size_t first = 0;  // values of a whole row before these, which share its scales

    // The row of token t, or that of choice t % choices of token t / choices.
    [[nodiscard]] const std::byte* row(std::size_t t) const noexcept {
        return data + static_cast<std::size_t>(index[t]) * stride;
    }
    // The same, with its scales.
    [[nodiscard]] stored_row stored(std::size_t t) const noexcept {
        if (!scales.any()) return {row(t)};
        return {row(t), first_scales() + static_cast<std::size_t>(index[t]) * stride, first};
    }
    // Widens that row to `width` floats: exactly, or times its scales.
    void read(std::size_t t, float* to) const noexcept { read_as_f32(stored(t), type, scales, 0, width, to); }
    // From the beginning of the first row to the end of the last.
    [[nodiscard]] std::size_t bytes() const noexcept {
        return count == 0 ? 0 : (count - 1) * stride + bytes_of_row(type, scales, width);
    }
    // A range of columns of every row: of a token-major table, the columns of one layer.
    // Precondition: `begin` and `numbers` are multiples of the format's block and lie in the row.
    [[nodiscard]] gathered_rows columns(std::size_t begin, std::size_t numbers) const noexcept {
        gathered_rows part = *this;
        if (scales.any()) part.scales.data = first_scales();
        part.data += bytes_of(type, begin);
        part.first += begin;
        part.width = numbers;
        return part;
    }

private:
    [[nodiscard]] const std::byte* first_scales() const noexcept {
        return scales.in_rows() ? data + bytes_of(type, width) : static_cast<const std::byte*>(scales.data);
    }
};

TIFFIN_END
