// Parallel reads at many offsets of a file. The reader is a policy: threads here, io_uring in reading_ring.hpp.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/error.hpp>
#include <tiffin/executor/fork_mark.hpp>
#include <tiffin/io/open_file.hpp>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// `bytes` bytes of a file from `offset` on. The first `needed` must exist; the rest may lie beyond the file's end, in
// its last disk block.
struct file_read {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::size_t needed = 0;
};

// Called with the index of a completed read and its bytes, valid until it returns; on any thread, concurrently.
using read_arrived = std::function<void(std::size_t, const std::byte*)>;

// Does all reads, in any order, into its own memory, or returns the failure of one. Called by one thread at a time.
// When a call ends, also by a failure, none of its reads is still running; an exception of `arrived` is a failure of
// the call.
template <class R>
concept parallel_reader = std::default_initializable<R> &&
    requires(R& reader, const open_file& file, std::span<const file_read> reads,
             const read_arrived& arrived) {
    { reader.read(file, reads, arrived) } -> std::same_as<status>;
};

namespace detail {

inline status tell(const read_arrived& arrived, std::size_t i, const std::byte* bytes) {
    return tiffin::detail::attempt("rows", [&]() -> status {
        arrived(i, bytes);
        return {};
    });
}

}  // namespace detail

// Memory for several reads at a time, each aligned to disk blocks.
class read_buffers {
public:
    static constexpr std::size_t block = 4096;

    // Makes room for `count` reads of the size of the largest of `reads`.
    void make_room(std::span<const file_read> reads, std::size_t count) {
        std::size_t most = 0;
        for (const file_read& r : reads) most = std::max(most, r.bytes);
        room_ = (most + block - 1) / block * block;
        if (memory_.size() < count * room_ + block) memory_ = aligned_buffer(count * room_ + block);
    }
    [[nodiscard]] std::byte* operator[](std::size_t place) noexcept {
        const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
        return memory_.data() + (block - address % block) % block + place * room_;
    }

private:
    std::size_t room_ = 0;
    aligned_buffer memory_;
};

// Each thread does one blocking read at a time: the calling one, and as many more as can be started, up to `threads` in
// all. In a child of fork() they are started anew.
// Errors: those of open_file::read.
// Cost: threads that sleep between calls, started by the first, and memory for one read per thread; two hand-overs
//   between threads per call.
class reading_threads {
public:
    explicit reading_threads(std::size_t threads = 64) : threads_(threads) {}
    reading_threads(const reading_threads&) = delete;
    reading_threads& operator=(const reading_threads&) = delete;
    ~reading_threads() {
        if (!threads_here_.here()) forget_threads();
        {
            const std::lock_guard lock(mutex_);
            ended_ = true;
        }
        begin_.notify_all();
        for (std::thread& other : others_) other.join();
    }

    status read(const open_file& file, std::span<const file_read> reads, const read_arrived& arrived) {
        if (!threads_here_.here()) forget_threads();
        start_threads(std::min(threads_, reads.size()));
        places_.make_room(reads, others_.size() + 1);
        next_ = 0;
        failed_ = {};
        file_ = &file;
        reads_ = reads;
        arrived_ = &arrived;
        {
            const std::lock_guard lock(mutex_);
            at_work_ = others_.size();
            ++call_;
        }
        begin_.notify_all();
        run(0);
        std::unique_lock lock(mutex_);
        ended_call_.wait(lock, [&] { return at_work_ == 0; });
        return std::move(failed_);
    }

private:
    // In a child of fork(): the threads are the parent's.
    void forget_threads() noexcept {
        for (std::thread& other : others_) tiffin::detail::renew(other);
        others_.clear();
        tiffin::detail::renew(mutex_);
        tiffin::detail::renew(begin_);
        tiffin::detail::renew(ended_call_);
        threads_here_.set();
    }
    void start_threads(std::size_t threads) {
#if TIFFIN_EXCEPTIONS
        try {
#endif
            // A new thread serves from the next call on: the last one has ended.
            while (others_.size() + 1 < threads)
                others_.emplace_back([this, me = others_.size() + 1, seen = call_] { serve(me, seen); });
#if TIFFIN_EXCEPTIONS
        } catch (const std::system_error&) {  // fewer threads suffice
        }
#endif
    }
    void run(std::size_t me) {
        for (std::size_t i = next_++; i < reads_.size(); i = next_++) {
            const file_read& r = reads_[i];
            status s = file_->read(r.offset, places_[me], r.bytes, r.needed);
            if (s) s = detail::tell(*arrived_, i, places_[me]);
            if (s) continue;
            const std::lock_guard lock(mutex_);
            failed_ = std::move(s);
            next_ = reads_.size();
        }
    }
    void serve(std::size_t me, std::size_t seen) {
        std::unique_lock lock(mutex_);
        for (;;) {
            begin_.wait(lock, [&] { return ended_ || call_ != seen; });
            if (ended_) return;
            seen = call_;
            lock.unlock();
            run(me);
            lock.lock();
            if (--at_work_ == 0) ended_call_.notify_one();
        }
    }

    std::size_t threads_;
    std::vector<std::thread> others_;
    read_buffers places_;  // one per thread
    std::mutex mutex_;
    std::condition_variable begin_, ended_call_;
    std::size_t call_ = 0;
    std::size_t at_work_ = 0;
    bool ended_ = false;
    tiffin::detail::fork_mark threads_here_;
    // State of the current call.
    const open_file* file_ = nullptr;
    std::span<const file_read> reads_;
    const read_arrived* arrived_ = nullptr;
    std::atomic<std::size_t> next_{0};
    status failed_;
};

}  // namespace io
TIFFIN_END
