// Reads at many places of a file, side by side. How is a policy: threads here, a ring in reading_ring.hpp.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/open_file.hpp>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// `bytes` bytes of a file from `offset` on, and where they go. The first `needed` must be there; the rest, of
// a block that the file ends in, need not.
struct file_read {
    std::uint64_t offset = 0;
    std::byte* to = nullptr;
    std::size_t bytes = 0;
    std::size_t needed = 0;
};

// Does all reads, in any order, or gives the failure of one. Called by one thread at a time.
template <class R>
concept parallel_reader = std::default_initializable<R> &&
    requires(R& reader, const open_file& file, std::span<const file_read> reads) {
    { reader.read(file, reads) } -> std::same_as<status>;
};

// Threads that each wait for one read at a time.
// Errors: those of open_file::read; std::system_error where there is no thread to be had.
// Cost: threads that sleep between calls, made by the first; two hand-overs a call.
class reading_threads {
public:
    // Disks have no more done side by side by more (measured: see bench_tables).
    explicit reading_threads(std::size_t threads = 32) : threads_(threads) {}
    reading_threads(const reading_threads&) = delete;
    reading_threads& operator=(const reading_threads&) = delete;
    ~reading_threads() {
        {
            const std::lock_guard lock(mutex_);
            ended_ = true;
        }
        begin_.notify_all();
        for (std::thread& other : others_) other.join();
    }

    status read(const open_file& file, std::span<const file_read> reads) {
        while (others_.size() + 1 < std::min(threads_, reads.size()))
            others_.emplace_back([this] { serve(); });
        next_ = 0;
        failed_ = {};
        file_ = &file;
        reads_ = reads;
        {
            const std::lock_guard lock(mutex_);
            at_work_ = others_.size();
            ++call_;
        }
        begin_.notify_all();
        run();
        std::unique_lock lock(mutex_);
        ended_call_.wait(lock, [&] { return at_work_ == 0; });
        return std::move(failed_);
    }

private:
    void run() {
        for (std::size_t i = next_++; i < reads_.size(); i = next_++) {
            const file_read& r = reads_[i];
            if (status s = file_->read(r.offset, r.to, r.bytes, r.needed); !s) {
                const std::lock_guard lock(mutex_);
                failed_ = std::move(s);
                next_ = reads_.size();
            }
        }
    }
    void serve() {
        std::size_t seen = 0;
        std::unique_lock lock(mutex_);
        for (;;) {
            begin_.wait(lock, [&] { return ended_ || call_ != seen; });
            if (ended_) return;
            seen = call_;
            lock.unlock();
            run();
            lock.lock();
            if (--at_work_ == 0) ended_call_.notify_one();
        }
    }

    std::size_t threads_;
    std::vector<std::thread> others_;
    std::mutex mutex_;
    std::condition_variable begin_, ended_call_;
    std::size_t call_ = 0;
    std::size_t at_work_ = 0;
    bool ended_ = false;
    // Of the call.
    const open_file* file_ = nullptr;
    std::span<const file_read> reads_;
    std::atomic<std::size_t> next_{0};
    status failed_;
};

}  // namespace io
TIFFIN_END
