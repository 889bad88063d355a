// Sums by a fixed tree over positions, so that roundings do not depend on which rank holds which terms.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>
#include <span>

TIFFIN_BEGIN

namespace detail {

// row *= weight, each product rounded. Never inlined: next to a sum a compiler may fuse the two into multiply-adds,
// which round once.
[[gnu::noinline]] inline void scale_row(float weight, float* row, std::size_t width) noexcept {
    for (std::size_t i = 0; i < width; ++i) row[i] *= weight;
}

// A term of a sum over positions [0, n): its position, and a row of floats.
struct placed_row {
    std::size_t place;
    float* row;
};

// Sums rows by a binary tree over the positions: [first, last) is halved recursively at (first + last) / 2, and a node
// is the sum of its two halves; empty halves are skipped.
//
//     positions 1, 2, 5 of [0, 6):  ((1) + (2)) + (5), by [0, 3) and [3, 6), then [0, 1) and [1, 3)
//
// Any subtree can be summed on another rank and replaced by its sum, without changing a bit.
// Shapes: rows (terms, width), positions ascending and distinct. The sum replaces the first row; others are
//   overwritten.
// Numerics: at most min(terms - 1, ceil(log2(last - first))) roundings per value.
inline void sum_by_halves(std::span<const placed_row> terms, std::size_t first, std::size_t last,
                          std::size_t width) noexcept {
    if (terms.size() < 2) return;
    const std::size_t middle = (first + last) / 2;
    std::size_t left = 0;
    while (left < terms.size() && terms[left].place < middle) ++left;
    sum_by_halves(terms.first(left), first, middle, width);
    sum_by_halves(terms.subspan(left), middle, last, width);
    if (left == 0 || left == terms.size()) return;
    float* const to = terms[0].row;
    const float* const from = terms[left].row;
    for (std::size_t i = 0; i < width; ++i) to[i] += from[i];
}

}  // namespace detail

TIFFIN_END
