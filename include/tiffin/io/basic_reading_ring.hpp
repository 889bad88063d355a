// Reads at many offsets of a file through a ring such as io_uring, in which one thread keeps many requests in flight.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/executor/fork_mark.hpp>
#include <tiffin/io/open_file.hpp>
#include <tiffin/io/parallel_reads.hpp>

#include <array>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

TIFFIN_BEGIN
namespace io {

// A read that a ring has completed: the slot it was queued with, and the bytes read or a negative error.
struct ended_read {
    unsigned place = 0;
    int got = 0;
};

// The operations that a reading ring needs: uring of reading_ring.hpp has them, or a test's ring that fails on purpose.
// Errors are negative; nothing throws.
//   open(entries)               creates it: 0 or an error
//   close()                     destroys it; reads that the system has taken may go on, others are dropped
//   queue(file, read, to, place)  whether there was room for one more
//   submit_and_wait()           submits queued reads, or some of them, and waits until a read has ended
//   wait()                      the same, but submits nothing
//   queued()                    reads that the system has not taken, whatever the two calls above have returned
//   take(ended)                 takes a completed read; false where there is none
template <class R>
concept read_ring = std::default_initializable<R> &&
    requires(R& ring, const R& seen, const file_read& read, std::byte* to, ended_read& ended) {
    { ring.open(1u) } -> std::same_as<int>;
    ring.close();
    { ring.queue(0, read, to, 0u) } -> std::same_as<bool>;
    { ring.submit_and_wait() } -> std::same_as<int>;
    { ring.wait() } -> std::same_as<int>;
    { seen.queued() } -> std::same_as<unsigned>;
    { ring.take(ended) } -> std::same_as<bool>;
};

// Reads with up to `depth` reads in flight, on the calling thread. In a child of fork() the ring is created anew: its
// memory is shared with the parent.
//
// When a call ends, also by a failure, the system is working on none of its reads and will not begin one: reads that it
// has taken are waited for, and a ring that holds others is created anew.
// Errors: those of open_file::read, which repeats every read that the ring has not completed whole, and whose result
//   counts. errc::file where this process has no io_uring, where it does not take reads, and where it is busy (EAGAIN,
//   EBUSY, EINTR) with no read in flight in `most_tries` tries, a millisecond apart. The next call tries again.
// Cost: memory for `depth` reads; one system call for all reads that have ended since the last.
template <read_ring Ring>
class basic_reading_ring {
public:
    static constexpr unsigned depth = 64;
    static constexpr unsigned most_tries = 100;

    basic_reading_ring() : error_(ring_.open(depth)) {}
    basic_reading_ring(const basic_reading_ring&) = delete;
    basic_reading_ring& operator=(const basic_reading_ring&) = delete;
    ~basic_reading_ring() {
        if (error_ == 0) ring_.close();
    }

    // Whether this process may use io_uring; in containers it often may not.
    [[nodiscard]] bool works() const noexcept { return error_ == 0; }

    status read(const open_file& file, std::span<const file_read> reads, const read_arrived& arrived) {
        if (!ring_here_.here() || error_ != 0) {
            make_anew();
            ring_here_.set();
        }
        if (error_ != 0) return file.refuse("io_uring cannot be had: " + reason(error_));
        places_.make_room(reads, depth);
        const struct ending {
            basic_reading_ring& ring;
            ~ending() { ring.settle(); }
        } at_the_end{*this};
        std::array<unsigned, depth> free{};  // slots
        std::array<std::size_t, depth> read_at{};
        std::iota(free.begin(), free.end(), 0u);
        std::size_t next = 0;
        for (unsigned tries = 0; next < reads.size() || busy_ > 0;) {
            for (; next < reads.size() && busy_ < depth; ++busy_) {
                const unsigned place = free[depth - 1 - busy_];
                if (!ring_.queue(file.descriptor(), reads[next], places_[place], place)) break;
                read_at[place] = next++;
            }
            int error = ring_.submit_and_wait();
            bool came = false;
            for (ended_read ended; ring_.take(ended); came = true) {
                free[depth - busy_--] = ended.place;
                const std::size_t i = read_at[ended.place];
                std::byte* const bytes = places_[ended.place];
                if (status s = complete(file, reads[i], bytes, ended.got); !s) return s;
                if (status s = detail::tell(arrived, i, bytes); !s) return s;
            }
            if (came || (error >= 0 && in_flight() > 0)) {
                tries = 0;
                continue;
            }
            if (error >= 0) error = -EAGAIN;  // nothing was taken
            const bool passes = error == -EAGAIN || error == -EBUSY || error == -EINTR;
            if (!passes || (in_flight() == 0 && ++tries == most_tries))
                return file.refuse("io_uring does not take reads: " + reason(error));
            if (error != -EINTR) pause();
        }
        return {};
    }

private:
    static std::string reason(int error) { return detail::reason({-error, std::generic_category()}); }
    static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

    static status complete(const open_file& file, const file_read& r, std::byte* to, int got) {
        if (got >= 0 && static_cast<std::size_t>(got) >= r.needed) return {};
        return file.read(r.offset, to, r.bytes, r.needed);
    }
    // Reads that the system has taken and not completed.
    [[nodiscard]] unsigned in_flight() const noexcept { return busy_ - ring_.queued(); }
    // Waits for the reads in flight, and drops those that are queued.
    void settle() noexcept {
        while (in_flight() > 0) {
            ended_read ended;
            if (ring_.take(ended))
                --busy_;
            else if (const int waited = ring_.wait(); waited < 0 && waited != -EINTR)
                pause();  // reads complete without wait(), too
        }
        if (busy_ > 0) make_anew();
    }
    void make_anew() noexcept {
        if (error_ == 0) ring_.close();
        error_ = ring_.open(depth);
        busy_ = 0;
    }

    read_buffers places_;
    Ring ring_;
    int error_;
    unsigned busy_ = 0;  // reads that are queued or in flight
    tiffin::detail::fork_mark ring_here_;
};

}  // namespace io
TIFFIN_END
