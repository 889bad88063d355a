// Reads at many places of a file through Linux's io_uring. Needs liburing (target tiffin::uring).
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/open_file.hpp>
#include <tiffin/io/parallel_reads.hpp>

#include <liburing.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <system_error>

TIFFIN_BEGIN
namespace io {

// One thread that keeps up to `depth` reads in flight.
// Errors: those of open_file::read; errc::file where the system has no io_uring for this process.
// Cost: a system call for as many reads as end meanwhile.
class reading_ring {
public:
    static constexpr unsigned depth = 64;

    reading_ring() : error_(::io_uring_queue_init(depth, &ring_, 0)) {}
    reading_ring(const reading_ring&) = delete;
    reading_ring& operator=(const reading_ring&) = delete;
    ~reading_ring() {
        if (error_ == 0) ::io_uring_queue_exit(&ring_);
    }

    status read(const open_file& file, std::span<const file_read> reads) {
        if (error_ != 0)
            return file.refuse("io_uring cannot be had: " +
                               detail::reason({-error_, std::generic_category()}));
        status failed;
        std::size_t next = 0, in_flight = 0;
        while (next < reads.size() || in_flight > 0) {
            while (next < reads.size() && in_flight < depth && failed.ok()) {
                const file_read& r = reads[next];
                ::io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
                if (entry == nullptr) break;
                ::io_uring_prep_read(entry, file.descriptor(), r.to, static_cast<unsigned>(r.bytes),
                                     r.offset);
                ::io_uring_sqe_set_data64(entry, next++);
                ++in_flight;
            }
            if (in_flight == 0) break;
            const int submitted = ::io_uring_submit_and_wait(&ring_, 1);
            if (submitted < 0 && submitted != -EINTR)
                return file.refuse("io_uring does not take reads: " +
                                   detail::reason({-submitted, std::generic_category()}));
            ::io_uring_cqe* ended = nullptr;
            while (::io_uring_peek_cqe(&ring_, &ended) == 0) {
                --in_flight;
                const file_read& r = reads[::io_uring_cqe_get_data64(ended)];
                if (status s = check(file, r, ended->res); !s && failed.ok()) failed = std::move(s);
                ::io_uring_cqe_seen(&ring_, ended);
            }
        }
        return failed;
    }

private:
    // What came of a read; what is missing of a short one is read again.
    static status check(const open_file& file, const file_read& r, int got) {
        if (got < 0 && got != -EINTR && got != -EAGAIN) return file.cannot_read(r.offset, r.needed, -got);
        const std::size_t done = got > 0 ? static_cast<std::size_t>(got) : 0;
        if (done >= r.needed) return {};
        return file.read(r.offset + done, r.to + done, r.bytes - done, r.needed - done);
    }

    ::io_uring ring_{};
    int error_;
};

}  // namespace io
TIFFIN_END
