// A thread that reads table rows while the calling thread computes.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/executor/fork_mark.hpp>
#include <tiffin/table/row_store.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Reads table rows into numbered memory areas on one background thread, in the order in which the reads were started
// (stores themselves read the rows of a call in parallel). To be used by one thread at a time.
// Errors: the constructor throws std::system_error where no thread can be started. An exception of a store on the
//   thread becomes a failure of its read.
// fork(): a child does not have the thread; start() then reads before it returns. If the fork happened during a read,
// which may have locked the store, every read in the child is a failure (errc::file).
// Cost: a thread that sleeps while there is nothing to read; per area, memory for the most rows read into it so far.
class background_reads {
public:
    explicit background_reads(std::size_t areas) : areas_(areas) {
        waiting_.reserve(areas);
        reader_ = std::thread([this] { serve(); });
    }
    background_reads(const background_reads&) = delete;
    background_reads& operator=(const background_reads&) = delete;
    ~background_reads() {
        if (!reader_here_.here()) {
            detail::renew(reader_);
            detail::renew(mutex_);
            detail::renew(changed_);
            detail::renew(waiting_);  // the fork may have interrupted a change of it; likewise `ended`
            for (area_of_rows& a : areas_)
                if (a.busy) detail::renew(a.ended);
            return;
        }
        {
            const std::lock_guard lock(mutex_);
            waiting_.clear();
            ended_ = true;
        }
        changed_.notify_all();
        reader_.join();
    }

    // Starts reading rows into an area and returns. The store and the ids must live until the read has ended.
    // Precondition: the area is not busy; every id lies in the table.
    void start(std::size_t area, row_store_ref store, std::span<const std::int32_t> ids) {
        make_room(area, store, ids);
        if (!reader_here_.here()) {
            static_cast<void>(areas_[area].ended = run(area));
            return;
        }
        {
            const std::lock_guard lock(mutex_);
            areas_[area].busy = true;
            waiting_.push_back(area);
        }
        changed_.notify_all();
    }
    // The same on the calling thread.
    status read(std::size_t area, row_store_ref store, std::span<const std::int32_t> ids) {
        make_room(area, store, ids);
        return run(area);
    }

    // Whether a read into the area has been started and has not ended.
    [[nodiscard]] bool busy(std::size_t area) const { return reader_here_.here() && areas_[area].busy; }
    // In a child of fork(): a failure where the fork happened during a read, as the store may then stay locked and must
    // not be called. Otherwise success.
    [[nodiscard]] status usable() const {
        const bool reading = !reader_here_.here() &&
                             std::ranges::any_of(areas_, [](const auto& any) { return any.busy.load(); });
        return reading ? status(lost()) : status();
    }
    // Waits for the last read into an area, and returns its status.
    status wait(std::size_t area) {
        if (!reader_here_.here()) return areas_[area].busy ? lost() : areas_[area].ended;
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !areas_[area].busy; });
        return areas_[area].ended;
    }
    // The rows read into an area, and per token of a call the index of its row among them.
    [[nodiscard]] gathered_rows rows(std::size_t area, std::span<const std::int32_t> index) const {
        const area_of_rows& a = areas_[area];
        const table_shape shape = a.store.shape();
        return {a.rows.data(), a.ids.size(), shape.row_bytes(), shape.width, shape.type, index, shape.scales};
    }

private:
    struct area_of_rows {
        row_store_ref store;
        std::span<const std::int32_t> ids;
        aligned_buffer rows;
        status ended;
        std::atomic<bool> busy = false;  // written under the mutex, set to false last
    };

    void make_room(std::size_t area, row_store_ref store, std::span<const std::int32_t> ids) {
        area_of_rows& a = areas_[area];
        const std::size_t bytes = ids.size() * store.shape().row_bytes();
        if (a.rows.size() < bytes) a.rows = aligned_buffer(bytes);
        a.store = store;
        a.ids = ids;
    }
    status run(std::size_t area) {
        area_of_rows& a = areas_[area];
        if (status s = usable(); !s) return s;
        return detail::attempt("store", [&] { return a.store.read(a.ids, a.rows.data()); });
    }
    static failure lost() {
        return {errc::file, "store",
                "was being read by a thread when this process was forked; the child needs one of its own"};
    }
    void serve() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            const std::size_t area = waiting_.front();
            waiting_.erase(waiting_.begin());
            lock.unlock();
            status ended = run(area);
            lock.lock();
            static_cast<void>(areas_[area].ended = std::move(ended));
            areas_[area].busy = false;
            changed_.notify_all();
        }
    }

    std::vector<area_of_rows> areas_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::size_t> waiting_;
    bool ended_ = false;
    detail::fork_mark reader_here_;
    std::thread reader_;
};

TIFFIN_END
