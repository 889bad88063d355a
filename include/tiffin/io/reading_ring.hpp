// Reads at many places of a file through Linux's io_uring. Needs liburing (target tiffin::uring).
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/executor/fork_mark.hpp>
#include <tiffin/io/open_file.hpp>
#include <tiffin/io/parallel_reads.hpp>

#include <liburing.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <system_error>
#include <utility>

TIFFIN_BEGIN
namespace io {

// One thread that keeps up to `depth` reads in flight. In a child of fork() the ring is made anew: its memory
// is shared with the parent.
// Errors: those of open_file::read; errc::file where the system has no io_uring for this process.
// Cost: room for `depth` reads; a system call for as many as end meanwhile.
class reading_ring {
public:
    static constexpr unsigned depth = 64;

    reading_ring() : error_(::io_uring_queue_init(depth, &ring_, 0)) {}
    reading_ring(const reading_ring&) = delete;
    reading_ring& operator=(const reading_ring&) = delete;
    ~reading_ring() {
        if (error_ == 0) ::io_uring_queue_exit(&ring_);
    }

    // Whether the system has io_uring for this process; containers often have not.
    [[nodiscard]] bool works() const noexcept { return error_ == 0; }

    status read(const open_file& file, std::span<const file_read> reads, const read_arrived& arrived) {
        if (!ring_here_.here()) {
            if (error_ == 0) ::io_uring_queue_exit(&ring_);
            error_ = ::io_uring_queue_init(depth, &ring_, 0);
            ring_here_.set();
        }
        if (error_ != 0)
            return file.refuse("io_uring cannot be had: " +
                               detail::reason({-error_, std::generic_category()}));
        places_.make_room(reads, depth);
        std::array<unsigned, depth> free{};  // places
        std::array<std::size_t, depth> read_at{};
        std::iota(free.begin(), free.end(), 0u);
        std::size_t unused = depth, next = 0;
        status failed;
        while ((next < reads.size() && failed.ok()) || unused < depth) {
            while (next < reads.size() && unused > 0 && failed.ok()) {
                ::io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
                if (entry == nullptr) break;
                const file_read& r = reads[next];
                const unsigned place = free[--unused];
                read_at[place] = next++;
                ::io_uring_prep_read(entry, file.descriptor(), places_[place], static_cast<unsigned>(r.bytes),
                                     r.offset);
                ::io_uring_sqe_set_data64(entry, place);
            }
            if (const int took = ::io_uring_submit_and_wait(&ring_, 1); took < 0 && took != -EINTR)
                return file.refuse("io_uring does not take reads: " +
                                   detail::reason({-took, std::generic_category()}));
            ::io_uring_cqe* ended = nullptr;
            while (::io_uring_peek_cqe(&ring_, &ended) == 0) {
                const auto place = static_cast<unsigned>(::io_uring_cqe_get_data64(ended));
                const file_read& r = reads[read_at[place]];
                if (status s = complete(file, r, places_[place], ended->res); !s)
                    failed = std::move(s);
                else
                    arrived(read_at[place], places_[place]);
                ::io_uring_cqe_seen(&ring_, ended);
                free[unused++] = place;
            }
        }
        return failed;
    }

private:
    // What is missing of a short read is read again.
    static status complete(const open_file& file, const file_read& r, std::byte* to, int got) {
        if (got < 0 && got != -EINTR && got != -EAGAIN) return file.cannot_read(r.offset, r.needed, -got);
        const std::size_t done = got > 0 ? static_cast<std::size_t>(got) : 0;
        if (done >= r.needed) return {};
        return file.read(r.offset + done, to + done, r.bytes - done, r.needed - done);
    }

    read_places places_;
    ::io_uring ring_{};
    int error_;
    tiffin::detail::fork_mark ring_here_;
};

}  // namespace io
TIFFIN_END
