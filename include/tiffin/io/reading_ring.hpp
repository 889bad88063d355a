// Reads at many offsets of a file through Linux's io_uring. Needs liburing (target tiffin::uring).
#pragma once

#include <tiffin/io/basic_reading_ring.hpp>

#include <liburing.h>

#include <cstddef>

TIFFIN_BEGIN
namespace io {

// An io_uring instance.
class uring {
public:
    int open(unsigned entries) noexcept { return ::io_uring_queue_init(entries, &ring_, 0); }
    void close() noexcept { ::io_uring_queue_exit(&ring_); }
    bool queue(int file, const file_read& read, std::byte* to, unsigned place) noexcept {
        ::io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
        if (entry == nullptr) return false;
        ::io_uring_prep_read(entry, file, to, static_cast<unsigned>(read.bytes), read.offset);
        ::io_uring_sqe_set_data64(entry, place);
        return true;
    }
    int submit_and_wait() noexcept { return ::io_uring_submit_and_wait(&ring_, 1); }
    int wait() noexcept {
        ::io_uring_cqe* ended = nullptr;
        return ::io_uring_wait_cqe(&ring_, &ended);
    }
    // By the head of the submission queue, which the kernel moves.
    [[nodiscard]] unsigned queued() const noexcept { return ::io_uring_sq_ready(&ring_); }
    bool take(ended_read& ended) noexcept {
        ::io_uring_cqe* entry = nullptr;
        if (::io_uring_peek_cqe(&ring_, &entry) != 0) return false;
        ended = {static_cast<unsigned>(::io_uring_cqe_get_data64(entry)), entry->res};
        ::io_uring_cqe_seen(&ring_, entry);
        return true;
    }

private:
    ::io_uring ring_{};
};

using reading_ring = basic_reading_ring<uring>;

}  // namespace io
TIFFIN_END
