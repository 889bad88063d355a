// What this machine can do at most: the limits that every measured kernel is held against.
#pragma once

#include "arithmetic.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#    include <sys/mman.h>
#endif

namespace tiffin_bench {

// A kernel that does F operations of a kind on B bytes from memory takes at least
//     seconds >= max(F / operations_per_second[kind], B / bytes_per_second),
// whatever its code. A time is reported as a share of that bound, from 0 to 1: it says how much is left to
// gain, which a ratio between two implementations does not.
struct machine_limits {
    std::array<double, arithmetic_kinds> operations_per_second;  // of each arithmetic, on all threads
    double bytes_per_second;  // bytes read from memory, past all caches; 1 GB/s is 1e9

    // The seconds that so many operations and bytes take at least.
    [[nodiscard]] double bound(arithmetic kind, double operations, double bytes) const {
        return std::max(operations / operations_per_second[static_cast<std::size_t>(kind)],
                        bytes / bytes_per_second);
    }
};

// Measures the limits with `threads` OpenMP threads. They belong to the instruction set that arithmetic.cpp
// and machine.cpp were compiled for: give them the flags of the kernels.
//
//     bytes_per_second = bytes / seconds
// for threads that each read one contiguous share of a buffer much larger than the last-level
// cache. Reading only: weights are read and never written. Kernels differ in how many rows they
// walk at once and in whether they prefetch, and so do the passes that the constructor tries.
//
// A limit is that of a moment. On a machine shared with others both were seen to change by a third
// within seconds, as a neighbour on the same core comes and goes: hence `now`, called between the
// runs of a kernel, so that each run is held against what the machine could do beside it.
class machine_meter {
public:
    // Takes about two seconds, longer where the system is slow to hand out memory for the first time.
    explicit machine_meter(int threads);
    ~machine_meter();
    machine_meter(const machine_meter&) = delete;
    machine_meter& operator=(const machine_meter&) = delete;

    // How long what was measured is taken for the machine as it is.
    static constexpr std::chrono::milliseconds moment{50};
    // The limits of this moment, in 10 to 20 ms: of a few tries each the best, as an interruption of
    // one of them says nothing about the machine. Measured anew only where the last are older than that.
    [[nodiscard]] machine_limits now();

private:
    struct state;
    std::unique_ptr<state> state_;
};

// The size of the largest cache of the first core; 32 MiB if the system does not tell. A working
// set has to be several times this for its reads to come from memory.
std::size_t last_level_cache_bytes();

// Asks for huge pages, where the system has them, for memory that was not written yet. A stream through 4 KiB
// pages pays for page walks, more so in a virtual machine; all sides of a comparison should have their
// weights in memory of this kind. A refusal costs speed only.
inline void ask_for_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
    constexpr std::size_t page = 4096;  // of the ordinary size, which the address has to be a multiple of
    const std::size_t skipped = (page - reinterpret_cast<std::uintptr_t>(memory) % page) % page;
    if (skipped < bytes)
        static_cast<void>(::madvise(static_cast<char*>(memory) + skipped, bytes - skipped, MADV_HUGEPAGE));
#endif
}

// Uninitialised floats on huge pages. Pages are placed at the first write.
class page_floats {
public:
    page_floats() = default;
    explicit page_floats(std::size_t count) : size_(count) {
        if (count == 0) return;
        const std::size_t bytes = (count * sizeof(float) + page - 1) / page * page;
        data_.reset(static_cast<float*>(std::aligned_alloc(page, bytes)));
        if (!data_) throw std::bad_alloc();
        ask_for_huge_pages(data_.get(), bytes);
    }
    [[nodiscard]] float* data() noexcept { return data_.get(); }
    [[nodiscard]] const float* data() const noexcept { return data_.get(); }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

private:
    static constexpr std::size_t page = std::size_t{2} << 20;
    struct release {
        void operator()(float* p) const noexcept { std::free(p); }
    };
    std::unique_ptr<float, release> data_;
    std::size_t size_ = 0;
};

}  // namespace tiffin_bench
