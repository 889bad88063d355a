// Row ids of LongCat's n-gram tables.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/table/ngram_history.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

TIFFIN_BEGIN

// LongCat's hash: `per_length` tables for each of n = 2..N, table i of M_i = ratio V + 2 i + 1 rows, row = (t + sum
// over k = 1..n-1 of t_-k (V^k mod M_i)) mod M_i. Missing ids count as 0, and so do an end-of-sequence id before the
// token and all ids before it.
// Errors of check(): errc::size where N < 2, or V or `per_length` is 0. Source: docs/tables.md#rows-by-the-last-ids.
struct longcat_hash {
    static constexpr bool end_counts = false;
    std::size_t ids = 0;  // V
    std::size_t ratio = 1;
    std::size_t longest = 2;  // N
    std::size_t per_length = 1;

    [[nodiscard]] std::size_t order() const noexcept { return longest; }
    [[nodiscard]] std::size_t vocab() const noexcept { return ids; }
    [[nodiscard]] std::size_t tables() const noexcept {
        std::size_t all = 0;
        return __builtin_mul_overflow(longest - 1, per_length, &all) ? ~std::size_t{0} : all;
    }
    [[nodiscard]] std::int64_t rows(std::size_t table) const noexcept {
        std::int64_t all = 0;
        const bool beyond = __builtin_mul_overflow(ratio, ids, &all) ||
                            __builtin_add_overflow(all, static_cast<std::int64_t>(2 * table + 1), &all);
        return beyond ? std::numeric_limits<std::int64_t>::max() : all;
    }
    [[nodiscard]] status check() const {
        if (longest < 2 || per_length == 0 || ids == 0)
            return failure(errc::size, "tables", "are ", per_length, " for each length of 2 to ", longest,
                           " and ", ids, " ids; none may be 0");
        return {};
    }
    void address(const std::int32_t* of, std::int32_t* to) const noexcept {
        for (std::size_t i = 0; i < tables(); ++i) {
            const std::int64_t m = rows(i);
            const std::size_t n = 2 + i / per_length;
            std::int64_t row = of[0] % m, power = 1;
            for (std::size_t k = 1; k < n; ++k) {
                power = power * (static_cast<std::int64_t>(ids) % m) % m;  // below 2^62
                if (of[k] != ngram_history::none) row = (row + of[k] % m * power) % m;
            }
            *to++ = static_cast<std::int32_t>(row);
        }
    }
};

TIFFIN_END
