// Row ids of Engram's tables, and of Qwen's.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/table/ngram_history.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

TIFFIN_BEGIN

// Engram's hash. For n = 2..N and each head: row = (xor over k < n of c(t_-k) m_k) mod prime, c the compressed id; where all
// heads lie in one table, offset of the head + that.
// Numerics: 64-bit arithmetic, products and xor modulo 2^64; the non-negative remainder of the signed value, or with
//   `unsigned_remainder` of the same bits as unsigned. They agree where no product overflows: m_k c < 2^63.
// Errors of check(): errc::option for a pad, compressed id or offset below 0, a prime below 1, and, unless `may_wrap`, for a
//   negative multiplier or one with which a product overflows; errc::size where there are not N >= 2 multipliers and N - 1
//   lists of primes, or not as many offsets as primes.
// Source: Engram, DeepSeek-V4.1, Qwen's n-gram PLE; docs/tables.md#rows-by-the-last-ids.
struct engram_hash {
    std::vector<std::int32_t> compressed;           // (V): compressed id of each token id; or none: as it is
    std::vector<std::int64_t> multipliers;          // (N): m_k of the id k tokens before
    std::vector<std::vector<std::int64_t>> primes;  // (N - 1, heads): of n = 2, 3, ..., N
    // The compressed id where there is no token id; the map is not applied to it.
    std::int32_t pad = 0;
    bool unsigned_remainder = false;
    bool may_wrap = false;
    // n ids from the oldest on, N - 1 before the token, which then is in the longest n-gram alone: engram-peft's.
    bool oldest_first = false;
    std::size_t ids = 0;  // V where ids are not compressed
    std::vector<std::int64_t>
        offsets{};  // of the heads in one table, in the order of primes; or none: a table each

    [[nodiscard]] std::size_t order() const noexcept { return multipliers.size(); }
    [[nodiscard]] std::size_t vocab() const noexcept { return compressed.empty() ? ids : compressed.size(); }
    [[nodiscard]] std::size_t tables() const noexcept {
        std::size_t all = 0;
        for (const auto& of_n : primes) all += of_n.size();
        return all;
    }
    // Where all heads lie in one table: its rows up to the last of this head.
    [[nodiscard]] std::int64_t rows(std::size_t table) const noexcept {
        const std::int64_t before = offsets.empty() ? 0 : offsets[table];
        std::size_t n = 0;
        while (table >= primes[n].size()) table -= primes[n++].size();
        std::int64_t all = 0;
        return __builtin_add_overflow(before, primes[n][table], &all)
                   ? std::numeric_limits<std::int64_t>::max()
                   : all;
    }
    [[nodiscard]] status check() const {
        if (order() < 2 || primes.size() != order() - 1)
            return failure(errc::size, "primes", "are of ", primes.size(), " lengths for ", order(),
                           " multipliers; there is one list for each of n = 2, ..., N");
        if (!offsets.empty() && offsets.size() != tables())
            return failure(errc::size, "offsets", "are ", offsets.size(), " for ", tables(), " primes");
        for (std::size_t i = 0; i < offsets.size(); ++i)
            if (offsets[i] < 0)
                return failure(errc::option, "offsets[" + std::to_string(i) + "]", "is ", offsets[i]);
        for (std::size_t n = 0; n < primes.size(); ++n)
            for (const std::int64_t prime : primes[n])
                if (prime < 1)
                    return failure(errc::option, "primes", "of ", n + 2, " ids have ", prime, " among them");
        std::int64_t largest = pad;
        if (compressed.empty() && ids > 0) largest = std::max(largest, static_cast<std::int64_t>(ids - 1));
        for (std::size_t i = 0; i < compressed.size(); ++i) {
            if (compressed[i] < 0)
                return failure(errc::option, "compressed[" + std::to_string(i) + "]", "is ", compressed[i]);
            largest = std::max<std::int64_t>(largest, compressed[i]);
        }
        if (pad < 0) return failure(errc::option, "pad", "is ", pad);
        std::int64_t product = 0;
        for (std::size_t k = 0; k < order() && !may_wrap; ++k)
            if (multipliers[k] < 0 || __builtin_mul_overflow(multipliers[k], largest, &product))
                return failure(errc::option, "multipliers[" + std::to_string(k) + "]", "is ", multipliers[k],
                               "; times the compressed id ", largest, " it overflows 63 bits");
        return {};
    }
    void address(const std::int32_t* of, std::int32_t* to) const noexcept {
        std::uint64_t mix = 0;
        std::size_t head = 0;
        for (std::size_t k = 0; k < order(); ++k) {
            const std::int32_t id = of[oldest_first ? order() - 1 - k : k];
            const std::int32_t c = id == ngram_history::none ? pad
                                   : compressed.empty()      ? id
                                                             : compressed[static_cast<std::size_t>(id)];
            mix ^= static_cast<std::uint64_t>(c) * static_cast<std::uint64_t>(multipliers[k]);
            if (k == 0) continue;
            for (const std::int64_t prime : primes[k - 1]) {
                const std::int64_t before = offsets.empty() ? 0 : offsets[head];
                to[head++] = static_cast<std::int32_t>(before + remainder(mix, prime));
            }
        }
    }

private:
    [[nodiscard]] std::int64_t remainder(std::uint64_t mix, std::int64_t prime) const noexcept {
        if (unsigned_remainder) return static_cast<std::int64_t>(mix % static_cast<std::uint64_t>(prime));
        const std::int64_t rest = static_cast<std::int64_t>(mix) % prime;
        return rest < 0 ? rest + prime : rest;
    }
};

TIFFIN_END
