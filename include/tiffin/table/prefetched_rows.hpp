// prefetch() and gather(): a table's rows are read while something else is computed.
#pragma once

#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/table/background_reads.hpp>
#include <tiffin/table/distinct_ids.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Reads the rows of one store for the tokens of successive calls; each distinct row of a call is read once.
//
//     prefetched_rows rows(table);
//     rows.prefetch(ids);                                        // returns at once
//     ...                                                        // work before the layer
//     auto now = rows.gather(ids);                               // waits if it must
//     layer(x, {.token_ids = ids, .gathered = {&*now, 1}}, y);
//
// A prefetch is advice: the rows of two calls may be in flight, and rows that are never gathered are replaced by later
// ones. gather() itself reads rows that were not prefetched, and reads again those that were prefetched before the
// store's version changed (see versioned_rows), so that it returns the store's current rows. Of a store without a
// version, such as from_callback, they are the rows at the time of the prefetch.
// Errors: errc::token_id; of gather(), those of the store and of background_reads. A failed read is tried again by the
//   next call.
// Cost: memory for the rows of three calls.
class prefetched_rows {
public:
    // The store must outlive this.
    explicit prefetched_rows(row_store_ref store) : store_(store) {}

    // Starts reading the rows of a call. Does nothing while two others are still being read.
    status prefetch(std::span<const std::int32_t> ids) {
        if (status s = reads_.usable(); !s) return s;
        if (status s = check_ids(ids, store_.shape()); !s) return s;
        const std::size_t area = free_area();
        if (reads_.busy(area)) return {};
        take(area, ids);
        reads_.start(area, store_, calls_[area].distinct.ids());
        calls_[area].expected = true;
        return {};
    }

    // The rows of a call, valid until the next gather().
    result<gathered_rows> gather(std::span<const std::int32_t> ids) {
        if (status s = reads_.usable(); !s) return s.failure();
        if (status s = check_ids(ids, store_.shape()); !s) return s.failure();
        if (delivered_ < areas) calls_[std::exchange(delivered_, areas)].expected = false;
        std::size_t area = 0;
        while (area < areas && !(calls_[area].expected && std::ranges::equal(calls_[area].given, ids)))
            ++area;
        const bool expected = area < areas;
        if (!expected) area = free_area();
        status read = reads_.wait(area);
        if (!expected || calls_[area].version != store_.version()) {
            take(area, ids);
            static_cast<void>(read = reads_.read(area, store_, calls_[area].distinct.ids()));
        }
        calls_[area].expected = read.ok();
        if (!read) return read.failure();
        delivered_ = area;
        return reads_.rows(area, calls_[area].distinct.index());
    }

private:
    static constexpr std::size_t areas = 3;  // one delivered, two in flight
    struct call {
        bool expected = false;
        std::size_t number = 0;     // later ones have larger numbers
        std::uint64_t version = 0;  // the store's, before the rows are read
        std::vector<std::int32_t> given;
        distinct_ids distinct;
    };

    // An area whose rows no gather() is expected to take, else the oldest; never the delivered one.
    std::size_t free_area() {
        std::size_t best = areas;
        for (std::size_t a = 0; a < areas; ++a) {
            if (a == delivered_) continue;
            if (!calls_[a].expected && !reads_.busy(a)) return a;
            if (best == areas || calls_[a].number < calls_[best].number) best = a;
        }
        return best;
    }
    // Assigns an area to the rows of a call; the caller sets `expected` once their read has been started.
    void take(std::size_t area, std::span<const std::int32_t> ids) {
        call& c = calls_[area];
        c.expected = false;
        c.given.assign(ids.begin(), ids.end());
        c.distinct.assign(ids);
        c.number = ++number_;
        c.version = store_.version();
    }

    row_store_ref store_;
    std::array<call, areas> calls_;
    std::size_t delivered_ = areas;  // none
    std::size_t number_ = 0;
    background_reads reads_{areas};  // last, so destroyed first: its thread reads the members above
};

// prefetched_rows of all tables whose rows are passed with a layer's calls, in the order in which the tables were added
// to its weights.
//
//     prefetched_tables tables({embeddings, modulators});
//     tables.prefetch(ids);
//     layer(x, {.token_ids = ids, .gathered = *tables.gather(ids)}, y);
//
// Errors, cost: those of prefetched_rows, for each.
class prefetched_tables {
public:
    explicit prefetched_tables(const std::vector<row_store_ref>& stores) : now_(stores.size()) {
        for (const row_store_ref& store : stores) tables_.emplace_back(store);
    }
    status prefetch(std::span<const std::int32_t> ids) {
        for (prefetched_rows& table : tables_)
            if (status s = table.prefetch(ids); !s) return s;
        return {};
    }
    // Valid until the next gather().
    result<std::span<const gathered_rows>> gather(std::span<const std::int32_t> ids) {
        std::size_t i = 0;
        for (prefetched_rows& table : tables_) {
            auto rows = table.gather(ids);
            if (!rows) return rows.failure();
            now_[i++] = *rows;
        }
        return std::span<const gathered_rows>(now_);
    }

private:
    std::list<prefetched_rows> tables_;
    std::vector<gathered_rows> now_;
};

TIFFIN_END
