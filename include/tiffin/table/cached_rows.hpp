// A memory-bounded cache of the rows of a store that were read recently or often.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/table/row_store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Eviction policies: a row gets a priority each time it is read; the row of the smallest priority is evicted, of
// several the one read longest ago.

// Evicts the row read longest ago.
struct least_recently_used {
    static constexpr std::uint64_t priority(std::uint64_t /*uses*/, std::uint64_t now,
                                            std::uint64_t /*age*/) noexcept {
        return now;
    }
};
// Evicts the row read least often, with dynamic ageing (Arlitt et al. 2000): a row's priority is its number of uses
// plus the priority of the last evicted row, so that old uses count less and no row stays for ever.
struct least_frequently_used {
    static constexpr std::uint64_t priority(std::uint64_t uses, std::uint64_t /*now*/,
                                            std::uint64_t age) noexcept {
        return age + uses;
    }
};

// How large a cache may become; the smaller of the two limits counts. 0: no limit of this kind.
struct cache_limit {
    std::size_t rows = 0;
    std::size_t bytes = 0;  // of rows and of their index entries
};

struct cache_counts {
    std::uint64_t hits = 0;    // rows found in the cache
    std::uint64_t misses = 0;  // rows read from the store
    std::uint64_t bytes_read = 0;
};

// A store that caches the rows of another in memory. Reads return the same rows with it and without it: a change of the
// other store's version empties the cache.
//
// Numerics: bytes are copied. Errors: those of the store; the cache then keeps its rows of this version.
// Threads: reads from several threads run one after the other.
// Cost: memory is used as rows are cached, up to the limit; a hit costs a hash table lookup, log2(rows) steps of a heap
//   and a copy.
// Source: STEM keeps the hot rows of its tables by LFU.
template <row_store Store, class Policy = least_frequently_used>
class cached_rows {
public:
    // The store must outlive this. A limit below one row caches nothing.
    cached_rows(const Store& store, const cache_limit& limit) : store_(&store), shape_(store.shape()) {
        most_ = shape_.row_bytes() == 0 ? 0 : shape_.rows;
        if (limit.rows != 0) most_ = std::min(most_, limit.rows);
        if (limit.bytes != 0)
            most_ = std::min(most_, limit.bytes / (shape_.row_bytes() + bytes_beside_a_row));
        rows_ = aligned_buffer(most_ * shape_.row_bytes());
        kept_.reserve(most_);
        heap_.reserve(most_);
        slots_.reserve(most_);
    }
    cached_rows(const Store&&, const cache_limit&) = delete;

    [[nodiscard]] table_shape shape() const { return store_->shape(); }
    [[nodiscard]] std::uint64_t version() const { return version_of(*store_); }
    // Rows that the limit allows.
    [[nodiscard]] std::size_t capacity() const noexcept { return most_; }
    [[nodiscard]] cache_counts counts() const {
        const std::lock_guard lock(mutex_);
        return counts_;
    }

    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        const std::lock_guard lock(mutex_);
        const std::size_t bytes = shape_.row_bytes();
        // The version is read before the rows: rows that an edit changes in between are dropped by the next read.
        if (const std::uint64_t now = version_of(*store_); std::exchange(version_, now) != now) drop();
        missing_.clear();
        for (const std::int32_t id : ids)
            if (!slots_.contains(id)) missing_.push_back(id);
        if (!missing_.empty())
            if (status s = store_->read(missing_, to); !s) return s;
        const auto here = [&](std::size_t i) -> const std::byte* {
            const auto found = slots_.find(ids[i]);
            if (found == slots_.end()) return nullptr;
            use(found->second);
            return row(found->second);
        };
        detail::scatter_rows(ids.size(), missing_.size(), bytes, here, to);
        if (!missing_.empty())
            for (std::size_t i = 0; i < ids.size(); ++i)
                if (!slots_.contains(ids[i])) keep(ids[i], to + i * bytes);
        counts_.hits += ids.size() - missing_.size();
        counts_.misses += missing_.size();
        counts_.bytes_read += missing_.size() * bytes;
        return {};
    }

private:
    struct kept_row {
        std::int32_t id = 0;
        std::uint32_t place = 0;  // position in the heap
        std::uint64_t uses = 0;
        std::uint64_t priority = 0;
        std::uint64_t last = 0;  // when it was read
    };
    // A kept_row, its position in the heap, and a node and a bucket of the hash table as libstdc++ and libc++ allocate
    // them.
    static constexpr std::size_t bytes_beside_a_row = sizeof(kept_row) + sizeof(std::uint32_t) + 32 + 8;

    [[nodiscard]] std::byte* row(std::uint32_t slot) const noexcept {
        return const_cast<std::byte*>(rows_.data()) + slot * shape_.row_bytes();
    }
    void drop() const noexcept {
        kept_.clear();
        heap_.clear();
        slots_.clear();
    }
    void use(std::uint32_t slot) const {
        kept_row& k = kept_[slot];
        k.last = ++now_;
        k.priority = Policy::priority(++k.uses, now_, age_);
        sink(k.place);
    }
    void keep(std::int32_t id, const std::byte* from) const {
        if (most_ == 0) return;
        std::uint32_t slot = static_cast<std::uint32_t>(kept_.size());
        if (kept_.size() < most_) {
            kept_.push_back({.id = id, .place = slot});
            heap_.push_back(slot);
        } else {
            slot = heap_[0];
            age_ = kept_[slot].priority;
            slots_.erase(kept_[slot].id);
            kept_[slot] = {.id = id, .place = 0};
        }
        std::memcpy(row(slot), from, shape_.row_bytes());
        slots_.emplace(id, slot);
        // A row that replaces the heap's top may have to sink, one appended at its end to rise.
        use(slot);
        rise(kept_[slot].place);
    }

    // A min-heap of slots: the next row to evict is first.
    [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> priority_at(std::size_t place) const noexcept {
        const kept_row& k = kept_[heap_[place]];
        return {k.priority, k.last};
    }
    void exchange(std::size_t a, std::size_t b) const noexcept {
        std::swap(heap_[a], heap_[b]);
        kept_[heap_[a]].place = static_cast<std::uint32_t>(a);
        kept_[heap_[b]].place = static_cast<std::uint32_t>(b);
    }
    void rise(std::size_t place) const noexcept {
        for (; place > 0 && priority_at(place) < priority_at((place - 1) / 2); place = (place - 1) / 2)
            exchange(place, (place - 1) / 2);
    }
    void sink(std::size_t place) const noexcept {
        for (std::size_t child = 2 * place + 1; child < heap_.size(); child = 2 * place + 1) {
            if (child + 1 < heap_.size() && priority_at(child + 1) < priority_at(child)) ++child;
            if (priority_at(place) <= priority_at(child)) return;
            exchange(place, child);
            place = child;
        }
    }

    const Store* store_;
    table_shape shape_;  // when this was made
    std::size_t most_ = 0;
    aligned_buffer rows_;
    // Changed by reads, guarded by the mutex.
    mutable std::mutex mutex_;
    mutable std::uint64_t version_ = 0;        // of the cached rows
    mutable std::vector<kept_row> kept_;       // by slot
    mutable std::vector<std::uint32_t> heap_;  // slots
    mutable std::unordered_map<std::int32_t, std::uint32_t> slots_;
    mutable std::vector<std::int32_t> missing_;
    mutable std::uint64_t now_ = 0;
    mutable std::uint64_t age_ = 0;
    mutable cache_counts counts_;
};

TIFFIN_END
