// Row ids of n-gram tables, hashed from the last token ids of a sequence before any layer runs.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/table/engram_hash.hpp>
#include <tiffin/table/longcat_hash.hpp>
#include <tiffin/table/ngram_history.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// A hash of the last `order()` token ids to one row in each of `tables()` tables.
// address(ids, to): ids[k] is the id k tokens before the current one, ngram_history::none where there is none. A hash
// may define `end_counts`: whether the end-of-sequence id itself is visible to later tokens (default: true).
template <class H>
concept ngram_hash = std::movable<H> &&
    requires(const H& hash, const std::int32_t* ids, std::int32_t* to, std::size_t i) {
    { hash.order() } -> std::convertible_to<std::size_t>;
    { hash.vocab() } -> std::convertible_to<std::size_t>;
    { hash.tables() } -> std::convertible_to<std::size_t>;
    { hash.rows(i) } -> std::convertible_to<std::int64_t>;
    { hash.check() } -> std::same_as<status>;
    hash.address(ids, to);
};

namespace detail {

template <class H>
constexpr bool end_counts() noexcept {
    if constexpr (requires { H::end_counts; })
        return H::end_counts;
    else
        return true;
}

}  // namespace detail

// The n-gram row ids of every token of a call, of any number of sequences: stores, caches and prefetches take them like
// token ids.
// Errors: those of the hash; errc::size, token_id, found before anything is written or a history has changed; of of(),
//   errc::option for a table that does not have 1 to 2^31 - 1 rows.
// Cost: order products per token and table; allocates only where a history grows.
//
//     auto address = ngram_addresses<engram_hash>::of(hash, end_of_sequence).or_throw();
//     std::vector<ngram_history> histories(sequences, ngram_history(address.order(), 8));
//     address(ids, sequence_of_token, histories, rows).or_throw();   // rows (tables, T)
//     tables[0].prefetch(std::span(rows).first(ids.size()));          // before the layers run
template <ngram_hash Hash>
class ngram_addresses {
public:
    // `end`: the end-of-sequence id, or none. To a token after an `end`, older ids are missing, and the `end` itself
    // unless Hash::end_counts. A token that is itself an `end` sees the ids before it.
    static result<ngram_addresses> of(Hash hash, std::int32_t end = ngram_history::none) {
        if (status s = hash.check(); !s) return s.failure();
        if (hash.order() > most_ids || hash.tables() > most_tables)
            return failure(errc::size, "hash", "reads ", hash.tables(), " rows by ", hash.order(),
                           " ids; up to ", most_tables, " by up to ", most_ids, " can be had");
        for (std::size_t i = 0; i < hash.tables(); ++i)
            if (hash.rows(i) < 1 || hash.rows(i) > std::numeric_limits<std::int32_t>::max())
                return failure(errc::option, "table " + std::to_string(i), "has ", hash.rows(i),
                               " rows; 1 to 2^31 - 1 can be addressed");
        return ngram_addresses(std::move(hash), end);
    }

    [[nodiscard]] std::size_t order() const noexcept { return hash_.order(); }
    [[nodiscard]] std::size_t tables() const noexcept { return hash_.tables(); }
    // Ids are below it.
    [[nodiscard]] std::size_t vocab() const noexcept { return hash_.vocab(); }
    [[nodiscard]] std::size_t rows(std::size_t table) const noexcept {
        return static_cast<std::size_t>(hash_.rows(table));
    }

    // Token t belongs to histories[sequence_of[t]] and is appended to it; the tokens of a sequence must be in order.
    // Shapes: rows (tables, T).
    status operator()(std::span<const std::int32_t> ids, std::span<const std::uint32_t> sequence_of,
                      std::span<ngram_history> histories, std::span<std::int32_t> rows) const {
        if (status s = check(ids, sequence_of, histories, rows); !s) return s;
        std::array<std::int32_t, most_ids> window;
        std::array<std::int32_t, most_tables> of_token;
        for (std::size_t t = 0; t < ids.size(); ++t) {
            ngram_history& past = histories[sequence_of[t]];
            window[0] = ids[t];
            bool cut = false;
            for (std::size_t k = 1; k < order(); ++k) {
                window[k] = cut ? ngram_history::none : past.before(k);
                if (end_ == ngram_history::none || window[k] != end_) continue;
                cut = true;
                if (!detail::end_counts<Hash>()) window[k] = ngram_history::none;
            }
            hash_.address(window.data(), of_token.data());
            for (std::size_t i = 0; i < tables(); ++i) rows[i * ids.size() + t] = of_token[i];
            past.add(ids[t]);
        }
        return {};
    }

private:
    static constexpr std::size_t most_ids = 16, most_tables = 256;

    ngram_addresses(Hash hash, std::int32_t end) : hash_(std::move(hash)), end_(end) {}

    [[nodiscard]] status check(std::span<const std::int32_t> ids, std::span<const std::uint32_t> sequence_of,
                               std::span<const ngram_history> histories,
                               std::span<const std::int32_t> rows) const {
        if (sequence_of.size() != ids.size())
            return failure(errc::size, "sequence_of", "are ", sequence_of.size(), " for ", ids.size(),
                           " ids");
        if (rows.size() != ids.size() * tables())
            return failure(errc::size, "rows", "have room for ", rows.size(), "; ", ids.size(), " ids read ",
                           tables(), " rows each");
        for (std::size_t t = 0; t < ids.size(); ++t) {
            if (ids[t] < 0 || static_cast<std::size_t>(ids[t]) >= hash_.vocab())
                return failure(errc::token_id, "ids", "ids[", t, "] = ", ids[t], " lies outside the ",
                               hash_.vocab(), " ids of the hash");
            if (sequence_of[t] >= histories.size())
                return failure(errc::size, "sequence_of[" + std::to_string(t) + "]", "is ", sequence_of[t],
                               "; there are ", histories.size(), " histories");
            if (const std::size_t has = histories[sequence_of[t]].order(); has < order())
                return failure(errc::size, "histories[" + std::to_string(sequence_of[t]) + "]",
                               "keeps ids for ", has, " at a time; the addresses are of ", order());
        }
        return {};
    }

    Hash hash_;
    std::int32_t end_;
};

TIFFIN_END
