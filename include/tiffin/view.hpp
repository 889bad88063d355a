// Matrices of a call: one token per row, given as spans, raw pointers or Eigen maps.
#pragma once

#include <tiffin/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>

TIFFIN_BEGIN

// Row-major memory of the caller: row i begins at data + i * stride.
template <class T>
struct matrix_view {
    T* data = nullptr;
    std::size_t rows = 0;
    std::size_t cols = 0;
    std::size_t stride = 0;

    constexpr matrix_view() = default;
    constexpr matrix_view(T* begin, std::size_t row_count, std::size_t col_count) noexcept
        : matrix_view(begin, row_count, col_count, col_count) {}
    constexpr matrix_view(T* begin, std::size_t row_count, std::size_t col_count,
                          std::size_t row_stride) noexcept
        : data(begin), rows(row_count), cols(col_count), stride(row_stride) {}
    template <class U>
        requires std::same_as<const U, T>
    constexpr matrix_view(const matrix_view<U>& other) noexcept
        : data(other.data), rows(other.rows), cols(other.cols), stride(other.stride) {}

    [[nodiscard]] constexpr T* row(std::size_t i) const noexcept { return data + i * stride; }
    [[nodiscard]] constexpr matrix_view rows_from(std::size_t first, std::size_t count) const noexcept {
        return {data + first * stride, count, cols, stride};
    }
};

namespace detail {

template <class M>
inline constexpr bool is_matrix_view = false;
template <class T>
inline constexpr bool is_matrix_view<matrix_view<T>> = true;

// Eigen's matrices and maps, recognised by their members, so that this header needs no Eigen.
template <class M>
concept eigen_like = requires(M& m) {
    m.data();
    m.rows();
    m.cols();
    m.outerStride();
    m.innerStride();
    std::remove_cvref_t<M>::IsRowMajor;
};

template <class T, class M>
concept span_like = requires(M& given) {
    { std::ranges::data(given) } -> std::convertible_to<T*>;
    { std::ranges::size(given) } -> std::convertible_to<std::size_t>;
};

// `given` as rows of `width` values. T is float or const float.
template <class T, class M>
result<matrix_view<T>> as_rows(M& given, std::size_t width, const char* name,
                               const char* width_name = "d_model") {
    using bare = std::remove_cvref_t<M>;
    const auto wrong_width = [&](std::size_t cols) {
        return failure(errc::size, name, "has rows of ", cols, " numbers; the layer's ", width_name, " is ",
                       width);
    };
    const auto checked = [&](const matrix_view<T>& rows) -> result<matrix_view<T>> {
        if (rows.cols != width) return wrong_width(rows.cols);
        if (rows.stride < width && rows.rows > 1)
            return failure(errc::size, name, "has a row stride of ", rows.stride, ", less than its width ",
                           width);
        return rows;
    };
    if constexpr (is_matrix_view<bare>) {
        static_assert(std::convertible_to<decltype(given.data), T*>,
                      "tiffin: a matrix_view given to a layer is not of float, or is y and of const float");
        return checked({given.data, given.rows, given.cols, given.stride});
    } else if constexpr (eigen_like<bare>) {
        static_assert(bool(bare::IsRowMajor),
                      "tiffin: a matrix given to a layer is column-major; tokens are rows here: use "
                      "Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>");
        static_assert(std::convertible_to<decltype(given.data()), T*>,
                      "tiffin: an Eigen matrix given to a layer is not of float, or is y and const");
        if (given.innerStride() != 1)
            return failure(errc::size, name, "has an inner stride of ", given.innerStride(),
                           "; the numbers of a row must be adjacent");
        if (given.outerStride() < 0)
            return failure(errc::size, name, "has a row stride of ", given.outerStride(), ", below 0");
        return checked({given.data(), static_cast<std::size_t>(given.rows()),
                        static_cast<std::size_t>(given.cols()),
                        static_cast<std::size_t>(given.outerStride())});
    } else {
        static_assert(span_like<T, M>,
                      "tiffin: an argument of a layer's call is neither a contiguous range of float "
                      "(std::span, std::vector), nor a tiffin::matrix_view<float>, nor an Eigen "
                      "matrix or map of float; or it is y and const");
        const std::size_t size = std::ranges::size(given);
        if (size % width != 0)
            return failure(errc::size, name, "has ", size, " numbers, not a multiple of ", width_name, " = ",
                           width);
        return matrix_view<T>{std::ranges::data(given), size / width, width, width};
    }
}

inline std::size_t extent_of(std::size_t rows, std::size_t cols, std::size_t stride) noexcept {
    return rows == 0 ? 0 : (rows - 1) * stride + cols;
}

// Whether two memory ranges share a byte.
inline bool ranges_overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) noexcept {
    const auto first = reinterpret_cast<std::uintptr_t>(a);
    const auto second = reinterpret_cast<std::uintptr_t>(b);
    return a_bytes != 0 && b_bytes != 0 && first < second + b_bytes && second < first + a_bytes;
}

// The bytes from a matrix's first value to its last.
template <class T>
std::size_t bytes_of_rows(const matrix_view<T>& m) noexcept {
    return extent_of(m.rows, m.cols, m.stride) * sizeof(T);
}
// Whether two matrices share an element. Column blocks of one wider matrix do not.
template <class A, class B>
bool matrices_overlap(const matrix_view<A>& a, const matrix_view<B>& b) noexcept {
    static_assert(sizeof(A) == sizeof(B));
    if (!ranges_overlap(a.data, bytes_of_rows(a), b.data, bytes_of_rows(b))) return false;
    if (a.stride != b.stride || a.rows < 2 || b.rows < 2) return true;
    const auto first = reinterpret_cast<std::uintptr_t>(a.data);
    const auto second = reinterpret_cast<std::uintptr_t>(b.data);
    const std::size_t row_bytes = a.stride * sizeof(A);
    const std::size_t offset =
        second >= first ? (second - first) % row_bytes : row_bytes - 1 - (first - second - 1) % row_bytes;
    const bool disjoint = offset >= a.cols * sizeof(A) && offset + b.cols * sizeof(A) <= row_bytes;
    return !disjoint;
}

// Whether row i of one matrix is row i of the other.
template <class A, class B>
bool is_same_matrix(const matrix_view<A>& a, const matrix_view<B>& b) noexcept {
    return a.data == b.data && a.rows == b.rows && a.cols == b.cols && (a.stride == b.stride || a.rows < 2);
}

}  // namespace detail

TIFFIN_END
