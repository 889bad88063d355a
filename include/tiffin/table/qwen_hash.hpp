// Row ids of Qwen's n-gram table.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/table/ngram_history.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

TIFFIN_BEGIN

// Qwen's hash (qwen4_exp): for n = 2..N and each head h of it, row = offset_h + (xor over k < n of t_-k m_k) mod size_h, all
// rows in one table. Where there is no id, before the sequence and before an end-of-sequence id, `end` is read. Positions
// of an image have the id of the image token.
// Numerics: 64-bit arithmetic. Errors of check(): errc::size where there are not N >= 2 multipliers and as many heads for each
//   length; errc::option for a negative offset or multiplier, a size below 1, an `end` that is no id, and a multiplier with
//   which a product overflows 63 bits, as its remainder would depend on the sign.
// Source: llama.cpp and Transformers (qwen4_exp); docs/tables.md#rows-by-the-last-ids.
struct qwen_hash {
    std::size_t ids = 0;                    // V
    std::vector<std::int64_t> multipliers;  // (N): of the id k tokens before
    std::vector<std::int64_t> offsets;      // (N - 1, heads): of n = 2, 3, ..., N
    std::vector<std::int64_t> sizes;        // the same
    std::int32_t end = 0;

    [[nodiscard]] std::size_t order() const noexcept { return multipliers.size(); }
    [[nodiscard]] std::size_t vocab() const noexcept { return ids; }
    [[nodiscard]] std::size_t tables() const noexcept { return sizes.size(); }
    // Rows up to the last of a head: every one of its "tables" is the whole table up to there.
    [[nodiscard]] std::int64_t rows(std::size_t head) const noexcept { return offsets[head] + sizes[head]; }
    [[nodiscard]] status check() const {
        if (order() < 2 || sizes.empty() || sizes.size() % (order() - 1) != 0 ||
            offsets.size() != sizes.size())
            return failure(errc::size, "sizes", "are ", sizes.size(), ", offsets ", offsets.size(), " for ",
                           order(), " multipliers; there are as many heads for each of n = 2, ..., N");
        if (end < 0 || static_cast<std::size_t>(end) >= ids)
            return failure(errc::option, "end", "is ", end, "; there are ", ids, " ids");
        std::int64_t behind = 0, product = 0;
        for (std::size_t i = 0; i < sizes.size(); ++i)
            if (sizes[i] < 1 || offsets[i] < 0 || __builtin_add_overflow(offsets[i], sizes[i], &behind))
                return failure(errc::option, "sizes[" + std::to_string(i) + "]", "is ", sizes[i],
                               ", its offset ", offsets[i]);
        for (std::size_t k = 0; k < order(); ++k)
            if (multipliers[k] < 0 ||
                __builtin_mul_overflow(multipliers[k], static_cast<std::int64_t>(ids - 1), &product))
                return failure(errc::option, "multipliers[" + std::to_string(k) + "]", "is ", multipliers[k],
                               "; times the id ", ids - 1, " it overflows 63 bits");
        return {};
    }
    void address(const std::int32_t* of, std::int32_t* to) const noexcept {
        const std::size_t heads = sizes.size() / (order() - 1);
        std::int64_t mix = of[0] * multipliers[0];
        for (std::size_t k = 1, h = 0; k < order(); ++k) {
            mix ^= (of[k] == ngram_history::none ? end : of[k]) * multipliers[k];
            for (const std::size_t behind = h + heads; h < behind; ++h)
                *to++ = static_cast<std::int32_t>(offsets[h] + mix % sizes[h]);
        }
    }
};

TIFFIN_END
