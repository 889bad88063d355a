// Reads the rows of all n-gram tables that the last ids select, concatenated to one input row per token.
#pragma once

#include <tiffin/table/background_reads.hpp>
#include <tiffin/table/distinct_ids.hpp>
#include <tiffin/table/row_store.hpp>
#include <tiffin/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// One n-gram table: rows [first, first + rows) of a store, which may hold several tables, as published files do.
struct ngram_table {
    row_store_ref store;
    std::size_t first = 0;
    std::size_t rows = 0;  // 0: all from `first` on
};

// e[t] = [T_0[r_0t], T_1[r_1t], ...] for the row ids r (tables, T) of ngram_addresses.
// Numerics: rows widened to f32, which is exact.
// Errors: errc::size, token_id; of gather(), those of the stores and of background_reads.
// Threads: one call at a time; the stores are read on a background thread. Cost: one read per store, of the rows of all its
//   tables; the rows of a call in memory twice, as stored (equal rows of a store once) and in f32; a call of no more tokens
//   than ever before allocates nothing.
// Source: Engram, LongCat; docs/tables.md#rows-by-the-last-ids.
//
//     auto memory = ngram_rows::of({{table_2a}, {table_2b}, {table_3a}, {table_3b}}).or_throw();
//     memory.prefetch(rows).or_throw();                           // before the layers run; returns at once
//     auto e = memory.gather(rows).or_throw();                    // waits if it must
//     layer(x, {.per_layer_input = e}, y);
class ngram_rows {
public:
    // The stores must outlive this.
    static result<ngram_rows> of(std::vector<ngram_table> tables) {
        if (tables.empty()) return failure(errc::size, "tables", "are none");
        for (std::size_t i = 0; i < tables.size(); ++i) {
            ngram_table& one = tables[i];
            const std::size_t all = one.store.shape().rows;
            if (one.rows == 0 && one.first < all) one.rows = all - one.first;
            if (one.rows == 0 || one.first > all || one.rows > all - one.first)
                return failure(errc::size, "tables[" + std::to_string(i) + "]", "are the rows ", one.first,
                               " to ", one.first + one.rows, " of a store that has ", all);
            if (all > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
                return failure(errc::size, "tables[" + std::to_string(i) + "]", "lies in a store of ", all,
                               " rows; a row's number has 31 bits");
        }
        return ngram_rows(std::move(tables));
    }

    [[nodiscard]] std::size_t tables() const noexcept { return tables_.size(); }
    [[nodiscard]] std::size_t width() const noexcept { return width_; }

    // Starts reading the rows of a call; replaces an earlier prefetch.
    status prefetch(std::span<const std::int32_t> rows) {
        if (status s = check(rows); !s) return s;
        begin(rows);
        return {};
    }
    // Returns e (T, width), valid until the next call of either. Rows are read again where the prefetch was of other
    // rows, or a store's version has changed since.
    result<matrix_view<const float>> gather(std::span<const std::int32_t> rows) {
        if (status s = check(rows); !s) return s.failure();
        if (!begun_ || !std::ranges::equal(rows, given_)) begin(rows);
        begun_ = false;
        const std::size_t tokens = rows.size() / tables();
        joined_.resize(tokens * width_);
        for (std::size_t i = 0; i < calls_.size(); ++i) {
            call& c = calls_[i];
            status read = reads_->wait(i);
            if (std::exchange(c.version, c.store.version()) != c.store.version())
                static_cast<void>(read = reads_->read(i, c.store, c.distinct.ids()));
            if (!read) return read.failure();
            for (std::size_t n = 0; n < c.tables.size(); ++n) {
                const gathered_rows of_table =
                    reads_->rows(i, c.distinct.index().subspan(n * tokens, tokens));
                float* const to = joined_.data() + columns_[c.tables[n]];
                for (std::size_t t = 0; t < tokens; ++t) of_table.read(t, to + t * width_);
            }
        }
        return matrix_view<const float>(joined_.data(), tokens, width_);
    }

private:
    // The rows of a store, of all its tables at once: the more rows a disk is asked for at a time, the sooner the last is there.
    struct call {
        row_store_ref store;
        std::vector<std::size_t> tables;  // by number
        std::uint64_t version = 0;
        std::vector<std::int32_t> rows;  // ids in the store, table by table
        distinct_ids distinct;
    };

    explicit ngram_rows(std::vector<ngram_table> tables) : tables_(std::move(tables)) {
        for (std::size_t i = 0; i < tables_.size(); ++i) {
            const row_store_ref& store = tables_[i].store;
            columns_.push_back(width_);
            width_ += store.shape().width;
            auto same = std::ranges::find(calls_, store, &call::store);
            if (same == calls_.end()) same = calls_.insert(same, {store, {}, 0, {}, {}});
            same->tables.push_back(i);
        }
        reads_ = std::make_unique<background_reads>(calls_.size());
    }
    [[nodiscard]] status check(std::span<const std::int32_t> rows) const {
        if (status s = reads_->usable(); !s) return s;
        if (rows.size() % tables() != 0)
            return failure(errc::size, "rows", "are ", rows.size(), " of ", tables(), " tables");
        const std::size_t tokens = rows.size() / tables();
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (rows[i] < 0 || static_cast<std::size_t>(rows[i]) >= tables_[i / tokens].rows)
                return failure(errc::token_id, "rows", "rows[", i, "] = ", rows[i], " lies outside the ",
                               tables_[i / tokens].rows, " rows of table ", i / tokens);
        return {};
    }
    void begin(std::span<const std::int32_t> rows) {
        const std::size_t tokens = rows.size() / tables();
        given_.assign(rows.begin(), rows.end());
        for (std::size_t i = 0; i < calls_.size(); ++i) {
            static_cast<void>(reads_->wait(i));
            call& c = calls_[i];
            c.rows.clear();
            for (const std::size_t table : c.tables)
                for (const std::int32_t row : rows.subspan(table * tokens, tokens))
                    c.rows.push_back(row + static_cast<std::int32_t>(tables_[table].first));
            c.distinct.assign(c.rows);
            c.version = c.store.version();
            reads_->start(i, c.store, c.distinct.ids());
        }
        begun_ = true;
    }

    std::vector<ngram_table> tables_;
    std::vector<std::size_t> columns_;  // of e, at which a table's begin
    std::vector<call> calls_;           // one per store
    std::vector<std::int32_t> given_;
    std::vector<float> joined_;
    std::size_t width_ = 0;
    bool begun_ = false;
    std::unique_ptr<background_reads> reads_;  // last, so destroyed first: its thread reads the members above
};

TIFFIN_END
