// Scales that accompany a tensor: one for all its values, one per row, per part of a row, or per block of rows and columns.
#pragma once

#include <tiffin/format/given_format.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

TIFFIN_BEGIN

// Whether scales can be stored in this format.
constexpr bool holds_scales(dtype type) noexcept {
    return type == dtype::f32 || type == dtype::f16 || type == dtype::bf16 || type == dtype::f8_e8m0;
}

// x = scale code, or x = scale code + bias: the codes are a tensor's values as its format defines them, F8_E4M3, Q8_0,
// U4. A scale covers `rows` rows, all axes but the last taken as one, and `columns` values of them. 0 columns: there
// are no scales.
//
//     {.rows = all, .columns = all, .data = &scale}                          one per tensor
//     {.columns = width, .data = scales}                                     one per row
//     {.type = dtype::f8_e8m0, .columns = 32, .data = scales}                one per 32 values of a row
//     {.rows = 128, .columns = 128, .data = scales}                          one per block
//     {.columns = width, .has_bias = true}                                   FBGEMM's rows: codes, scale, bias
//
// Shapes: data (ceil(all rows / rows), ceil(last axis / columns)), each scale followed by its bias where there are biases.
//   Null data: the scales of a row follow its codes, and the next row follows them (rows is 1 then).
// Numerics: a product is rounded to f32 once; a product and a bias together once (fma).
struct tensor_scales {
    static constexpr std::size_t all = ~std::size_t{0};

    dtype type = dtype::f32;  // F32, F16, BF16 or F8_E8M0; of the biases too
    std::size_t rows = 1;
    std::size_t columns = 0;
    bool has_bias = false;
    const void* data = nullptr;

    [[nodiscard]] constexpr bool any() const noexcept { return columns != 0; }
    // Whether they lie in the rows. Precondition of this and the next two: any().
    [[nodiscard]] constexpr bool in_rows() const noexcept { return data == nullptr; }
    // Scales of a row of `width` values, and their bytes.
    [[nodiscard]] constexpr std::size_t per_row(std::size_t width) const noexcept {
        return width / columns + (width % columns != 0 ? 1 : 0);
    }
    [[nodiscard]] constexpr std::size_t bytes_per_row(std::size_t width) const noexcept {
        return per_row(width) * size_of(type) * (has_bias ? 2 : 1);
    }
    // The same scales where each row has its own, after its codes.
    [[nodiscard]] constexpr tensor_scales as_in_rows() const noexcept { return {type, 1, columns, has_bias}; }
    // For error messages: "one F32 scale and bias per 64 values".
    [[nodiscard]] std::string text() const {
        if (!any()) return "no scales";
        return "one " + std::string(name_of(type)) + " scale" + (has_bias ? " and bias" : "") + " per " +
               (columns == all ? "row" : std::to_string(columns) + " values");
    }
    // Whether rows with these scales are stored alike.
    [[nodiscard]] constexpr bool stored_as(const tensor_scales& other) const noexcept {
        return columns == other.columns && (!any() || (type == other.type && has_bias == other.has_bias));
    }
};

// The bytes of a row of `width` values, with the scales that lie in it.
constexpr std::size_t bytes_of_row(dtype type, const tensor_scales& scales, std::size_t width) noexcept {
    return bytes_of(type, width) + (scales.any() && scales.in_rows() ? scales.bytes_per_row(width) : 0);
}

// A row in memory: its codes, and its scales. `first`: the values before the first of the codes that belong to the same
// row of scales.
struct stored_row {
    const std::byte* codes = nullptr;
    const std::byte* scales = nullptr;
    std::size_t first = 0;
};

// Multiplies values [first, first + count) of a row, which are codes, by their scales. Precondition: scales.any().
// Not inlined, so that what reads the values does not round them together with what follows.
[[gnu::noinline]] inline void scale_values(const tensor_scales& how, const stored_row& row, std::size_t first,
                                           std::size_t count, float* values) noexcept {
    for (std::size_t i = 0; i < count;) {
        const std::size_t at = row.first + first + i, n = at / how.columns;
        const std::size_t end = std::min(count, i + (how.columns - at % how.columns));
        if (!how.has_bias) {
            const float scale = load_as_f32(row.scales, how.type, n);
            for (; i < end; ++i) values[i] *= scale;
        } else {
            const float scale = load_as_f32(row.scales, how.type, 2 * n);
            const float bias = load_as_f32(row.scales, how.type, 2 * n + 1);
            for (; i < end; ++i) values[i] = std::fma(scale, values[i], bias);
        }
    }
}

// Reads values [first, first + count) of a row of codes of this format, times their scales where there are any.
inline void read_as_f32(const stored_row& row, dtype type, const tensor_scales& how, std::size_t first,
                        std::size_t count, float* to) noexcept {
    read_as_f32(row.codes, type, first, count, to);
    if (how.any()) scale_values(how, row, first, count, to);
}

TIFFIN_END
