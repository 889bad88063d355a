// The device cache of a table in host memory: which rows it holds, and in which slots.
#pragma once

#include <tiffin/cuda/call.hpp>
#include <tiffin/cuda/kernels.hpp>

#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace cuda_detail {

// The counters of a cache, on the device.
struct offload_counters {
    unsigned long long calls, tokens, hits, misses;
    unsigned long long since_aged;  // tokens since use counts were halved
    std::uint32_t hand;             // the first slot that the next miss compares
    std::uint32_t age;              // whether this call halves the use counts
};

// A cache of rows in slots, and one call's arrays. All pointers are to device memory.
//
// The ids of a call are sorted; each distinct one has a number, `distinct`. It is a hit where `slot_of` has its slot,
// else a miss with a number of its own. A miss compares `looks` slots, which no other miss compares, and takes the one
// used least often, if that was used less often than itself and not by this call; else its row is stored behind the
// slots, for this call alone. So the contents depend on the ids alone, not on the order of threads.
struct row_cache {
    static constexpr std::uint32_t looks = 8;
    static constexpr std::int32_t nowhere = -1;

    // Of the table.
    std::uint32_t rows;
    std::int32_t* slot_of;        // (rows): its slot, or nowhere
    std::uint32_t* uses;          // (rows): calls that used it, halved by age_uses
    std::int32_t* owner;          // (slots): its row, or nowhere
    unsigned long long* used_by;  // (slots): last call that used it
    std::uint32_t slot_count;
    offload_counters* counters;
    // Of a call of `tokens` tokens.
    std::size_t tokens;
    const std::int32_t* ids;
    refused_ids refused;
    std::uint32_t *keys, *sorted, *entries, *order;  // (tokens)
    std::uint32_t *heads, *distinct;                 // (tokens): 1 at the first of equal ids, and prefix sums
    std::uint32_t *missed, *misses;  // (tokens): by distinct number, 1 for a miss, and prefix sums
    std::int32_t* target;            // (tokens): by distinct number, its slot
    std::int32_t* wanted;            // (tokens + 1): the number of misses, then their ids
    std::uint32_t* places;           // (tokens): slot of each miss
    std::int32_t* index;             // (tokens): slot of each token, gathered_rows::index
};

// The kernels over all tokens of a call, in this order; between them the sort and the prefix sums.
struct begin_ids {
    row_cache c;
    __device__ void operator()(std::size_t i) const {
        std::int32_t id = c.ids[i];
        if (id < 0 || static_cast<std::uint32_t>(id) >= c.rows) {
            c.refused.note(false, i, id);
            id = 0;
        }
        c.keys[i] = static_cast<std::uint32_t>(id);
        c.entries[i] = static_cast<std::uint32_t>(i);
        c.missed[i] = 0;
        if (i == 0) {
            ++c.counters->calls;
            c.counters->tokens += c.tokens;
            c.counters->since_aged += c.tokens;
            c.counters->age = c.counters->since_aged > 16ull * c.slot_count ? 1 : 0;
            if (c.counters->age != 0) c.counters->since_aged = 0;
        }
    }
};
// Few threads: most calls have nothing to do. Decided on the device, so that a replayed graph halves the counts too.
struct age_uses {
    static constexpr std::size_t threads = 16384;

    row_cache c;
    __device__ void operator()(std::size_t i) const {
        if (c.counters->age == 0) return;
        for (; i < c.rows; i += threads) c.uses[i] /= 2;
    }
};
struct find_heads {
    row_cache c;
    __device__ void operator()(std::size_t i) const {
        c.heads[i] = i == 0 || c.sorted[i] != c.sorted[i - 1] ? 1 : 0;
    }
};
struct find_rows {
    row_cache c;
    __device__ void operator()(std::size_t i) const {
        if (c.heads[i] == 0) return;
        const std::uint32_t id = c.sorted[i], number = c.distinct[i] - 1;
        ++c.uses[id];
        const std::int32_t slot = c.slot_of[id];
        c.target[number] = slot;
        if (slot == row_cache::nowhere)
            c.missed[number] = 1;
        else
            c.used_by[slot] = c.counters->calls;
    }
};
struct admit_rows {
    row_cache c;
    __device__ void operator()(std::size_t i) const {
        if (c.heads[i] == 0) return;
        const std::uint32_t id = c.sorted[i], number = c.distinct[i] - 1;
        if (c.missed[number] == 0) return;
        const std::uint32_t miss = c.misses[number] - 1;
        std::int32_t best = row_cache::nowhere;
        std::uint32_t least = c.uses[id];
        if ((std::size_t{miss} + 1) * row_cache::looks <= c.slot_count)
            for (std::uint32_t n = 0; n < row_cache::looks; ++n) {
                const std::uint32_t slot = (c.counters->hand + miss * row_cache::looks + n) % c.slot_count;
                const std::int32_t holds = c.owner[slot];
                const std::uint32_t used = holds == row_cache::nowhere ? 0 : c.uses[holds];
                if (c.used_by[slot] == c.counters->calls || used >= least) continue;
                least = used;
                best = static_cast<std::int32_t>(slot);
            }
        if (best != row_cache::nowhere) {
            if (c.owner[best] != row_cache::nowhere) c.slot_of[c.owner[best]] = row_cache::nowhere;
            c.owner[best] = static_cast<std::int32_t>(id);
            c.slot_of[id] = best;
            c.used_by[best] = c.counters->calls;
        } else {
            best = static_cast<std::int32_t>(c.slot_count + miss);
        }
        c.target[number] = best;
        c.wanted[1 + miss] = static_cast<std::int32_t>(id);
        c.places[miss] = static_cast<std::uint32_t>(best);
    }
};
struct finish_ids {
    row_cache c;
    __device__ void operator()(std::size_t i) const {
        c.index[c.order[i]] = c.target[c.distinct[i] - 1];
        if (i + 1 != c.tokens) return;
        const std::uint32_t different = c.distinct[i], missing = c.misses[different - 1];
        c.wanted[0] = static_cast<std::int32_t>(missing);
        c.counters->misses += missing;
        c.counters->hits += different - missing;
        if (c.slot_count > 0)
            c.counters->hand = (c.counters->hand + missing * row_cache::looks) % c.slot_count;
    }
};

// A warp per piece of a missing row: from the host's table, or from the memory that a store has read the rows into,
// contiguous. A piece is one read per thread: a second would wait for the bus once more.
struct fetch_body {
    static constexpr std::size_t piece = 16 * warp_threads;

    row_cache c;
    const std::byte* from;
    const std::int32_t* were_read;  // rows that the store read, all or none; null: `from` is the table
    std::size_t bytes;
    std::byte* rows;

    [[nodiscard]] TIFFIN_HD std::size_t pieces() const { return (bytes + piece - 1) / piece; }
    __device__ void operator()(const warp& g, std::size_t item) const {
        const auto [n, part] = divide(item, pieces());
        if (n >= static_cast<std::size_t>(c.wanted[0])) return;
        const std::int32_t id = c.wanted[1 + n];
        const std::uint32_t place = c.places[n];
        if (were_read != nullptr && *were_read == 0) {
            if (part == 0 && g.rank() == 0) forget(id, place);
            return;
        }
        const std::size_t row = were_read != nullptr ? n : static_cast<std::size_t>(id);
        const std::byte* const source = from + row * bytes + part * piece;
        std::byte* const to = rows + place * bytes + part * piece;
        const std::size_t count = bytes - part * piece < piece ? bytes - part * piece : piece;
        const std::uintptr_t lies =
            reinterpret_cast<std::uintptr_t>(source) | reinterpret_cast<std::uintptr_t>(to) | count;
        if (lies % 16 == 0)
            copy<words<std::uint32_t, 4>>(g, source, to, count);
        else if (lies % 4 == 0)
            copy<std::uint32_t>(g, source, to, count);
        else
            copy<std::byte>(g, source, to, count);
    }

private:
    template <class Group>
    __device__ static void copy(const warp& g, const std::byte* source, std::byte* to, std::size_t count) {
        for (std::size_t i = g.rank(); i < count / sizeof(Group); i += g.size())
            reinterpret_cast<Group*>(to)[i] = reinterpret_cast<const Group*>(source)[i];
    }
    // Removes an admitted row that was not read, so that later calls do not find it.
    __device__ void forget(std::int32_t id, std::uint32_t place) const {
        if (place >= c.slot_count) return;
        c.owner[place] = row_cache::nowhere;
        c.slot_of[id] = row_cache::nowhere;
    }
};

}  // namespace cuda_detail

TIFFIN_END
