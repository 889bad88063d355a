// The fetch of a call's rows: through the cache and over the bus, on a stream beside the caller's.
#pragma once

#include <tiffin/cuda/call_checks.hpp>
#include <tiffin/cuda/table/registered_memory.hpp>
#include <tiffin/cuda/table/row_cache.hpp>
#include <tiffin/table/row_store.hpp>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>

TIFFIN_BEGIN

namespace cuda_detail {

// (A template, as offloaded_rows is, so that CUB is compiled only where rows are fetched.)
template <row_store Store>
class row_fetch {
public:
    // Without a store: rows of `table`.
    row_fetch(const table_shape& shape, const Store& store, registered_memory table, std::size_t tokens,
              std::size_t slot_count)
        : shape_(shape), store_(store), table_(std::move(table)), tokens_(tokens), slots_(slot_count) {}
    row_fetch(const row_fetch&) = delete;
    row_fetch& operator=(const row_fetch&) = delete;
    ~row_fetch() {
        if (stream_ != nullptr) static_cast<void>(cudaStreamSynchronize(stream_));
        if (asked_ != nullptr) static_cast<void>(cudaEventDestroy(asked_));
        if (fetched_ != nullptr) static_cast<void>(cudaEventDestroy(fetched_));
        if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
    }

    status prepare() {
        if (status s = checked(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); !s)
            return s;
        for (cudaEvent_t* const event : {&asked_, &fetched_})
            if (status s = checked(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event"); !s)
                return s;
        device_arena counted;
        lay_out(counted);
        auto memory = device_memory::make(counted.used(), "offloaded rows");
        if (!memory) return memory.failure();
        memory_ = *std::move(memory);
        device_arena areas(memory_.data());
        lay_out(areas);
        if (table_.host() == nullptr) {
            auto staged =
                registered_memory::make(std::max<std::size_t>(tokens_ * shape_.row_bytes(), 1), "rows read");
            if (!staged) return staged.failure();
            table_ = *std::move(staged);
            auto list = registered_memory::make((tokens_ + 1) * sizeof(std::int32_t), "ids wanted");
            if (!list) return list.failure();
            wanted_here_ = *std::move(list);
        }
        if (status s = set(cache_.counters, 0, 1); !s) return s;
        if (status s = set(cache_.refused.key, 0xFF, 1); !s) return s;
        if (status s = empty_cache(); !s) return s;
        return checked(cudaStreamSynchronize(stream_), "offloaded rows");  // a graph would not wait for it
    }

    // Enqueues the fetch of a call on this object's stream, behind what is on `after`. Precondition: 1 to `tokens` ids.
    status run(std::span<const std::int32_t> ids, cudaStream_t after) {
        if (status s = checked(cudaEventRecord(asked_, after), "prefetch"); !s) return s;
        if (status s = checked(cudaStreamWaitEvent(stream_, asked_, 0), "prefetch"); !s) return s;
        // Rows that a failed fetch admitted were never read; rows are stale where the store has changed since.
        const std::uint64_t now = version();
        if (std::exchange(was_refused_, true) || now != version_)
            if (status s = empty_cache(); !s) return s;
        version_ = now;
        row_cache c = cache_;
        c.ids = ids.data();
        c.tokens = ids.size();
        launches out(stream_);
        for_elements(out, c.tokens, begin_ids{c});
        if (slots_ > 0) for_elements(out, std::min(shape_.rows, age_uses::threads), age_uses{c});
        sort(out, c);
        for_elements(out, c.tokens, find_heads{c});
        sum(out, c.heads, c.distinct, c.tokens);
        for_elements(out, c.tokens, find_rows{c});
        sum(out, c.missed, c.misses, c.tokens);
        for_elements(out, c.tokens, admit_rows{c});
        for_elements(out, c.tokens, finish_ids{c});
        if (wanted_here_.host() != nullptr && out.going()) {
            out.refuse(cudaMemcpyAsync(wanted_here_.host(), c.wanted, (c.tokens + 1) * sizeof(std::int32_t),
                                       cudaMemcpyDeviceToHost, stream_),
                       "prefetch");
            out.refuse(cudaLaunchHostFunc(stream_, read_wanted, this), "prefetch");
        }
        const fetch_body fetch{c, table_.device(),
                               reinterpret_cast<const std::int32_t*>(wanted_here_.device()),
                               shape_.row_bytes(), rows_};
        for_warps(out, c.tokens * fetch.pieces(), fetch);
        if (out.going()) out.refuse(cudaEventRecord(fetched_, stream_), "prefetch");
        was_refused_ = !out.going();
        return out.outcome();
    }
    // Whether the store's rows are still those of the last fetch.
    [[nodiscard]] bool is_current() const { return version() == version_; }
    status wait_on(cudaStream_t stream) {
        return checked(cudaStreamWaitEvent(stream, fetched_, 0), "gather");
    }

    // Waits for the fetches. Returns what the store could not read since the last time; else `key` is the noted id.
    status finish(unsigned long long& key) {
        if (status s = check_idle(stream_); !s) return s;
        if (status s = checked(cudaStreamSynchronize(stream_), "prefetch"); !s) return s;
        {
            const std::lock_guard lock(mutex_);
            if (!read_outcome_) return std::exchange(read_outcome_, status());
        }
        return take_refused(cache_.refused, key, stream_);
    }
    status read(offload_counters& to) {
        if (status s = check_idle(stream_); !s) return s;
        if (status s = checked(
                cudaMemcpyAsync(&to, cache_.counters, sizeof to, cudaMemcpyDeviceToHost, stream_), "counts");
            !s)
            return s;
        return checked(cudaStreamSynchronize(stream_), "counts");
    }
    [[nodiscard]] const std::byte* rows() const noexcept { return rows_; }
    [[nodiscard]] const std::int32_t* index() const noexcept { return cache_.index; }

private:
    // The version of a store; 0 for a table in memory.
    [[nodiscard]] std::uint64_t version() const {
        return wanted_here_.host() != nullptr ? version_of(store_) : 0;
    }
    template <class T>
    status set(T* data, int byte, std::size_t count) {
        return checked(cudaMemsetAsync(data, byte, count * sizeof(T), stream_), "offloaded rows");
    }
    status empty_cache() {
        const std::size_t last = std::max<std::size_t>(slots_, 1);
        if (status s = set(cache_.slot_of, 0xFF, shape_.rows); !s) return s;
        if (status s = set(cache_.owner, 0xFF, last); !s) return s;
        if (status s = set(cache_.uses, 0, shape_.rows); !s) return s;
        return set(cache_.used_by, 0, last);
    }
    void lay_out(device_arena& areas) {
        const std::size_t last = std::max<std::size_t>(slots_, 1), most = std::max<std::size_t>(tokens_, 1);
        row_cache& c = cache_;
        c.rows = static_cast<std::uint32_t>(shape_.rows);
        c.slot_count = static_cast<std::uint32_t>(slots_);
        rows_ = areas.take<std::byte>((slots_ + most) * shape_.row_bytes());
        c.slot_of = areas.take<std::int32_t>(shape_.rows);
        c.uses = areas.take<std::uint32_t>(shape_.rows);
        c.owner = areas.take<std::int32_t>(last);
        c.used_by = areas.take<unsigned long long>(last);
        c.counters = areas.take<offload_counters>(1);
        c.refused.key = areas.take<unsigned long long>(1);
        for (std::uint32_t** const numbers : {&c.keys, &c.sorted, &c.entries, &c.order, &c.heads, &c.distinct,
                                              &c.missed, &c.misses, &c.places})
            *numbers = areas.take<std::uint32_t>(most);
        c.target = areas.take<std::int32_t>(most);
        c.wanted = areas.take<std::int32_t>(most + 1);
        c.index = areas.take<std::int32_t>(most);
        std::size_t sorting = 0, summing = 0;
        static_cast<void>(sort_into(nullptr, sorting, c, most));
        static_cast<void>(
            cub::DeviceScan::InclusiveSum(nullptr, summing, c.heads, c.distinct, static_cast<int>(most)));
        scratch_bytes_ = std::max(sorting, summing);
        scratch_ = areas.take<std::byte>(scratch_bytes_);
    }
    cudaError_t sort_into(std::byte* scratch, std::size_t& bytes, const row_cache& c,
                          std::size_t tokens) const {
        return cub::DeviceRadixSort::SortPairs(scratch, bytes, c.keys, c.sorted, c.entries, c.order,
                                               static_cast<int>(tokens), 0,
                                               static_cast<int>(std::bit_width(c.rows)), stream_);
    }
    void sort(launches& out, const row_cache& c) {
        std::size_t bytes = scratch_bytes_;
        if (out.going()) out.refuse(sort_into(scratch_, bytes, c, c.tokens), "cub::DeviceRadixSort");
    }
    void sum(launches& out, const std::uint32_t* from, std::uint32_t* to, std::size_t tokens) {
        std::size_t bytes = scratch_bytes_;
        if (out.going())
            out.refuse(
                cub::DeviceScan::InclusiveSum(scratch_, bytes, from, to, static_cast<int>(tokens), stream_),
                "cub::DeviceScan");
    }
    // A host function on the stream: the store reads the missing rows.
    static void CUDART_CB read_wanted(void* self) {
        auto& fetch = *static_cast<row_fetch*>(self);
        auto* const wanted = reinterpret_cast<std::int32_t*>(fetch.wanted_here_.host());
        const std::span<const std::int32_t> ids(wanted + 1, static_cast<std::size_t>(wanted[0]));
        if (ids.empty()) return;
        status s = detail::attempt("store", [&] { return fetch.store_.read(ids, fetch.table_.host()); });
        if (s.ok()) return;
        wanted[0] = 0;  // fetch_body then finds that nothing was read
        const std::lock_guard lock(fetch.mutex_);
        if (fetch.read_outcome_) std::swap(fetch.read_outcome_, s);
    }

    table_shape shape_;
    Store store_;
    registered_memory table_;        // the table, or the memory that a store reads rows into
    registered_memory wanted_here_;  // with a store: the ids that it reads
    std::size_t tokens_;
    std::size_t slots_;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t asked_ = nullptr;
    cudaEvent_t fetched_ = nullptr;
    device_memory memory_;
    row_cache cache_{};
    std::byte* rows_ = nullptr;
    std::byte* scratch_ = nullptr;
    std::size_t scratch_bytes_ = 0;
    bool was_refused_ = false;
    std::uint64_t version_ = 0;  // of the store, before the last fetch
    std::mutex mutex_;
    status read_outcome_;
};

}  // namespace cuda_detail

TIFFIN_END
