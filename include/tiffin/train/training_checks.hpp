// Checks of the memory that a training call is given.
#pragma once

#include <tiffin/call/call_checks.hpp>
#include <tiffin/error.hpp>
#include <tiffin/view.hpp>

#include <cstddef>
#include <initializer_list>
#include <span>

TIFFIN_BEGIN

namespace train_detail {

template <class T>
status check_adjacent(const matrix_view<T>& given, const char* name) {
    if (given.stride == given.cols || given.rows < 2) return {};
    return failure(errc::size, name, "has a row stride of ", given.stride, " for rows of ", given.cols,
                   " numbers; in training rows are adjacent");
}
template <class T>
status check_rows(const matrix_view<T>& given, const char* name, std::size_t rows, std::size_t width) {
    if (status s = detail::check_matrix(given, name, rows, width); !s) return s;
    return check_adjacent(given, name);
}

// Memory of a call, by its name.
struct named_bytes {
    const char* name;
    std::span<const std::byte> memory;
};
template <class T>
std::span<const std::byte> bytes_of(const matrix_view<T>& m) noexcept {
    return {reinterpret_cast<const std::byte*>(m.data), m.data == nullptr ? 0 : m.rows * m.cols * sizeof(T)};
}
template <class T>
std::span<const std::byte> bytes_of(std::span<T> some) noexcept {
    return std::as_bytes(some);
}
// Fails where a written range overlaps another written range, or one that backward reads.
inline status check_overlap(std::initializer_list<named_bytes> written,
                            std::initializer_list<named_bytes> read) {
    const auto overlap = [](const named_bytes& a, const named_bytes& b) {
        return detail::ranges_overlap(a.memory.data(), a.memory.size(), b.memory.data(), b.memory.size());
    };
    for (const named_bytes* one = written.begin(); one != written.end(); ++one) {
        for (const named_bytes* other = one + 1; other != written.end(); ++other)
            if (overlap(*one, *other)) return failure(errc::overlap, one->name, "overlaps ", other->name);
        for (const named_bytes& kept : read)
            if (overlap(*one, kept))
                return failure(errc::overlap, one->name, "overlaps ", kept.name, ", which backward reads");
    }
    return {};
}

}  // namespace train_detail

TIFFIN_END
