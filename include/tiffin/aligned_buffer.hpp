// Aligned memory for packed weights and workspaces.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#if defined(__linux__)
#    include <sys/mman.h>
#endif

TIFFIN_BEGIN

// Uninitialised bytes, aligned to a cache line. Buffers of 2 MiB or more are aligned to 2 MiB and request
// huge pages: a kernel that streams through hundreds of megabytes otherwise stalls on TLB misses.
class aligned_buffer {
public:
    static constexpr std::size_t line = 64;

    aligned_buffer() = default;
    explicit aligned_buffer(std::size_t bytes) {
        if (bytes > 0) hold(bytes, ::operator new(bytes, alignment_of(bytes)));
    }
    // Empty if the allocation fails.
    aligned_buffer(std::size_t bytes, const std::nothrow_t& none) noexcept {
        if (bytes > 0) hold(bytes, ::operator new(bytes, alignment_of(bytes), none));
    }
    aligned_buffer(aligned_buffer&& other) noexcept { swap(other); }
    aligned_buffer& operator=(aligned_buffer&& other) noexcept {
        aligned_buffer(std::move(other)).swap(*this);
        return *this;
    }
    ~aligned_buffer() {
        if (data_) ::operator delete (data_, std::align_val_t{alignment_});
    }

    [[nodiscard]] std::byte* data() noexcept { return data_; }
    [[nodiscard]] const std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    // The memory as an array of T, a trivial type; uninitialised until written.
    template <class T>
    [[nodiscard]] T* as() noexcept {
        return reinterpret_cast<T*>(data_);
    }
    template <class T>
    [[nodiscard]] const T* as() const noexcept {
        return reinterpret_cast<const T*>(data_);
    }
    void swap(aligned_buffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(alignment_, other.alignment_);
    }

private:
    static constexpr std::size_t huge_page = std::size_t{2} << 20;

    static constexpr std::align_val_t alignment_of(std::size_t bytes) noexcept {
        return std::align_val_t{bytes >= huge_page ? huge_page : line};
    }
    void hold(std::size_t bytes, void* memory) noexcept {
        if (memory == nullptr) return;
        data_ = static_cast<std::byte*>(memory);
        size_ = bytes;
        alignment_ = static_cast<std::size_t>(alignment_of(bytes));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        // Advice only: if it is refused, the buffer works without huge pages.
        if (alignment_ == huge_page)
            static_cast<void>(::madvise(data_, bytes / huge_page * huge_page, MADV_HUGEPAGE));
#endif
    }

    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t alignment_ = line;
};

TIFFIN_END
