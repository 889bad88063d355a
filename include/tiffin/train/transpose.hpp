// Matrix transpose of f32.
#pragma once

#include <tiffin/config.hpp>

#include <array>
#include <cstddef>
#include <cstring>

TIFFIN_BEGIN

namespace train_detail {

// to[c to_stride + r] = from[r stride + c]: blocks of 4 x 4 in registers.
inline void transpose(const float* from, std::size_t stride, std::size_t rows, std::size_t cols, float* to,
                      std::size_t to_stride) noexcept {
    using four = float __attribute__((vector_size(16)));
    const auto load = [](const float* at) {
        four v;
        std::memcpy(&v, at, sizeof v);
        return v;
    };
    const std::size_t whole_rows = rows / 4 * 4, whole_cols = cols / 4 * 4;
    for (std::size_t r = 0; r < whole_rows; r += 4)
        for (std::size_t c = 0; c < whole_cols; c += 4) {
            const float* const at = from + r * stride + c;
            const four a = load(at), b = load(at + stride), d = load(at + 2 * stride),
                       e = load(at + 3 * stride);
            const four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                       ba = __builtin_shufflevector(a, b, 2, 6, 3, 7);
            const four de = __builtin_shufflevector(d, e, 0, 4, 1, 5),
                       ed = __builtin_shufflevector(d, e, 2, 6, 3, 7);
            const four columns[4] = {
                __builtin_shufflevector(ab, de, 0, 1, 4, 5), __builtin_shufflevector(ab, de, 2, 3, 6, 7),
                __builtin_shufflevector(ba, ed, 0, 1, 4, 5), __builtin_shufflevector(ba, ed, 2, 3, 6, 7)};
            for (std::size_t i = 0; i < 4; ++i)
                std::memcpy(to + (c + i) * to_stride + r, &columns[i], sizeof(four));
        }
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = r < whole_rows ? whole_cols : 0; c < cols; ++c)
            to[c * to_stride + r] = from[r * stride + c];
}

// to = from, or to += from.
inline void add_row(const float* from, std::size_t count, float* to, bool add) noexcept {
    if (add)
        for (std::size_t l = 0; l < count; ++l) to[l] += from[l];
    else
        std::memcpy(to, from, count * sizeof(float));
}
// The same for the columns of from (rows, columns), each into a row of `to`. Most: at least rows columns.
template <std::size_t Most>
void add_transposed(const float* from, std::size_t from_stride, std::size_t rows, std::size_t columns,
                    float* to, std::size_t to_stride, bool add) noexcept {
    alignas(64) std::array<float, Most> turned;
    transpose(from, from_stride, rows, columns, turned.data(), rows);
    for (std::size_t c = 0; c < columns; ++c)
        add_row(turned.data() + c * rows, rows, to + c * to_stride, add);
}

}  // namespace train_detail

TIFFIN_END
