// What stores do with many rows at a time.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>
#include <cstring>

TIFFIN_BEGIN
namespace detail {

// Calls use(i, row(i)) for i in [first, end), and prefetches the beginning of a later one of `count` rows: rows lie at
// random addresses, and a cache miss per row takes longer than a copy.
template <class Row, class Use>
void use_rows(std::size_t first, std::size_t end, std::size_t count, std::size_t bytes, const Row& row,
              const Use& use) {
    constexpr std::size_t most = 1024;
    const std::size_t ahead = bytes > 512 ? 8 : 16;  // as many lines as a core waits for at a time
    for (std::size_t i = first; i < end; ++i) {
        if (i + ahead < count) {
            const std::byte* const later = row(i + ahead);
            for (std::size_t at = 0; at < bytes && at < most; at += 64) __builtin_prefetch(later + at);
            // A row in a file seldom begins with a line: one more than its bytes fill.
            if (bytes > 0 && bytes <= most) __builtin_prefetch(later + bytes - 1);
        }
        use(i, row(i));
    }
}

// Moves rows to their positions in `to`: row i is copied from elsewhere(i), or, where that is null, it is the next of
// the `in_front` rows that lie packed at the front of `to`. From the last to the first: a packed row never moves to a
// lower index, so that none is overwritten before it has moved.
template <class Elsewhere>
void scatter_rows(std::size_t count, std::size_t in_front, std::size_t bytes, const Elsewhere& elsewhere,
                  std::byte* to) {
    if (bytes == 0) return;  // a row may be null then, and so may `to`
    for (std::size_t i = count; i-- > 0;)
        if (const std::byte* const row = elsewhere(i))
            std::memcpy(to + i * bytes, row, bytes);
        else if (--in_front != i)
            std::memcpy(to + i * bytes, to + in_front * bytes, bytes);
}

}  // namespace detail

TIFFIN_END
