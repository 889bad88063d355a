// A thread that reads rows while its caller computes.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/table/gathered_rows.hpp>
#include <tiffin/table/row_store.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Reads of rows into areas of memory, in the order in which they were started, on one thread: stores read a
// call's rows side by side themselves. To be used by one thread at a time.
// Errors: the constructor throws std::system_error where there is no thread to be had. What a store throws
//   on the thread becomes a failure of its read.
// Cost: a thread that sleeps while there is nothing to read; memory for the most rows that an area ever had.
class background_reads {
public:
    explicit background_reads(std::size_t areas) : areas_(areas), reader_([this] { serve(); }) {}
    background_reads(const background_reads&) = delete;
    background_reads& operator=(const background_reads&) = delete;
    ~background_reads() {
        {
            const std::lock_guard lock(mutex_);
            waiting_.clear();
            ended_ = true;
        }
        changed_.notify_all();
        reader_.join();
    }

    // Begins to read rows into an area and returns. Store and ids are to stay until the read has ended.
    // Precondition: the area is not busy; every id lies in the table.
    void start(std::size_t area, row_store_ref store, std::span<const std::int32_t> ids) {
        make_room(area, store, ids);
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
        return run(areas_[area]);
    }

    // Whether a read into the area has been started and has not ended.
    [[nodiscard]] bool busy(std::size_t area) {
        const std::lock_guard lock(mutex_);
        return areas_[area].busy;
    }
    // How the last read into an area ended, once it has.
    status wait(std::size_t area) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !areas_[area].busy; });
        return areas_[area].ended;
    }
    // What was read into an area, and which of its rows each token of a call has.
    [[nodiscard]] gathered_rows rows(std::size_t area, std::span<const std::int32_t> index) const {
        const area_of_rows& a = areas_[area];
        const table_shape shape = a.store.shape();
        return {a.rows.data(), a.ids.size(), shape.row_bytes(), shape.width, shape.type, index};
    }

private:
    struct area_of_rows {
        row_store_ref store;
        std::span<const std::int32_t> ids;
        aligned_buffer rows;
        status ended;
        bool busy = false;
    };

    void make_room(std::size_t area, row_store_ref store, std::span<const std::int32_t> ids) {
        area_of_rows& a = areas_[area];
        const std::size_t bytes = ids.size() * store.shape().row_bytes();
        if (a.rows.size() < bytes) a.rows = aligned_buffer(bytes);
        a.store = store;
        a.ids = ids;
    }
    static status run(area_of_rows& a) {
        return detail::attempt("store", [&] { return a.store.read(a.ids, a.rows.data()); });
    }
    void serve() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            area_of_rows& a = areas_[waiting_.front()];
            waiting_.pop_front();
            lock.unlock();
            status ended = run(a);
            lock.lock();
            a.ended = std::move(ended);
            a.busy = false;
            changed_.notify_all();
        }
    }

    std::vector<area_of_rows> areas_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::size_t> waiting_;
    bool ended_ = false;
    std::thread reader_;  // last: it uses what is above
};

TIFFIN_END
