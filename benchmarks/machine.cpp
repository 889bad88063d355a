#include "machine.hpp"

#include <omp.h>
#include <unistd.h>
#include <xsimd/xsimd.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <string>
#include <utility>

namespace tiffin_bench {
namespace {

using vec = xsimd::batch<float>;
constexpr std::size_t lanes = vec::size;
constexpr std::size_t line = 64 / sizeof(float);  // floats a cache line holds

// Calls `work(thread, threads)` on all threads at once; the seconds from the first start to the last end, and
// the number of threads there were.
template <class Work>
std::pair<double, int> time_on_all(int threads, const Work& work) {
    using clock = std::chrono::steady_clock;
    clock::time_point start, end;
    int count = 1;
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num();
#pragma omp master
        count = omp_get_num_threads();
#pragma omp barrier
        // One thread must not be at work before the clock starts, hence a barrier on either side.
#pragma omp master
        start = clock::now();
#pragma omp barrier
        work(me, count);
#pragma omp barrier
#pragma omp master
        end = clock::now();
    }
    return {std::chrono::duration<double>(end - start).count(), count};
}

// Keeps a result alive, so that the loop that made it is.
void consume(vec v) {
    [[maybe_unused]] volatile float kept = v.get(0);
}

// Reads `floats` floats from `from` on, a multiple of 8 lines, as `Streams` walks side by side,
// each asking for the line `ahead` floats further on if that is not 0. Eight accumulators, so that
// no addition waits for the one before.
template <std::size_t Streams, bool Prefetch>
vec read_share(const float* from, std::size_t floats, std::size_t ahead) {
    constexpr std::size_t accumulators = 8;
    constexpr std::size_t lines_each = accumulators / Streams;
    const std::size_t stream_floats = floats / Streams;
    std::array<vec, accumulators> sum;
    sum.fill(vec(0.0f));
    for (std::size_t i = 0; i < stream_floats; i += lines_each * line) {
        for (std::size_t s = 0; s < Streams; ++s) {
            const float* at = from + s * stream_floats + i;
            for (std::size_t l = 0; l < lines_each; ++l) {
                // A prefetch beyond the end is void; it does not fault.
                if constexpr (Prefetch) __builtin_prefetch(at + l * line + ahead);
                vec& mine = sum[s * lines_each + l];
                for (std::size_t j = 0; j < line; j += lanes) mine += vec::load_aligned(at + l * line + j);
            }
        }
    }
    vec total = sum[0];
    for (std::size_t k = 1; k < accumulators; ++k) total += sum[k];
    return total;
}

struct read_pass {
    vec (*read)(const float*, std::size_t, std::size_t);
    std::size_t ahead;
};

// One walk is what a large copy does, four and eight are what a product with several rows at a
// time does. The hardware prefetcher stays within a 4 KiB page, software does not.
constexpr std::array<read_pass, 8> read_passes{{
    {read_share<1, false>, 0},
    {read_share<1, true>, 512},
    {read_share<1, true>, 1024},
    {read_share<1, true>, 2048},
    {read_share<4, false>, 0},
    {read_share<4, true>, 512},
    {read_share<8, false>, 0},
    {read_share<8, true>, 512},
}};

std::size_t physical_memory_bytes() {
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page <= 0) return std::size_t{4} << 30;
    return static_cast<std::size_t>(pages) * static_cast<std::size_t>(page);
}

}  // namespace

std::size_t last_level_cache_bytes() {
    long largest = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    largest = std::max(
        {sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL4_CACHE_SIZE), 0L});
#endif
    // sysconf knows nothing on some systems, and in some virtual machines.
    for (int index = 0; index < 8; ++index) {
        std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
        long size = 0;
        char unit = 0;
        if (!(file >> size)) continue;
        file >> unit;
        largest = std::max(largest, size * (unit == 'K' ? 1L << 10 : unit == 'M' ? 1L << 20 : 1L));
    }
    return largest > 0 ? static_cast<std::size_t>(largest) : std::size_t{32} << 20;
}

struct machine_meter::state {
    // Shares are multiples of the largest step, 8 lines in each of 8 streams.
    static constexpr std::size_t grain = 64 * line;
    static constexpr std::size_t slices = 8;

    explicit state(int threads_)
        : threads(threads_),
          workers(static_cast<std::size_t>(std::max(threads_, 1))),
          slice(std::min(std::max(std::size_t{512} << 20, 4 * last_level_cache_bytes()),
                         physical_memory_bytes() / 8) /
                sizeof(float) / workers / slices / grain * grain),
          buffer(slice * slices * workers) {
        // Written once by the thread that will read it: pages never written all map to one page of
        // zeros, which stays in the cache.
        for_shares([this](std::size_t worker) {
            std::fill_n(buffer.data() + worker * slices * slice, slices * slice, 0.0f);
        });
        double best = 0;
        for (int round = 0; round < 3; ++round)
            for (const read_pass& candidate : read_passes)
                for (std::size_t i = 0; i < slices; ++i)
                    if (const double found = bandwidth(candidate); found > best) {
                        best = found;
                        pass = candidate;
                    }
    }

    // Reads the next slice of every share.
    double bandwidth(const read_pass& by) {
        const std::size_t first = next++ % slices * slice;
        const double seconds = for_shares([&](std::size_t worker) {
            consume(by.read(buffer.data() + worker * slices * slice + first, slice, by.ahead));
        });
        return static_cast<double>(slice * workers * sizeof(float)) / seconds;
    }

    // However many threads there turn out to be, each of `workers` shares is someone's.
    template <class Work>
    double for_shares(const Work& work) {
        return time_on_all(threads,
                           [&](int me, int count) {
                               for (std::size_t w = static_cast<std::size_t>(me); w < workers;
                                    w += static_cast<std::size_t>(count))
                                   work(w);
                           })
            .first;
    }

    int threads;
    std::size_t workers;
    std::size_t slice;  // floats of a share read at a time
    page_floats buffer;
    std::size_t next = 0;
    read_pass pass = read_passes[0];
    machine_limits limits{};
    std::chrono::steady_clock::time_point measured{};
};

machine_meter::machine_meter(int threads) : state_(std::make_unique<state>(threads)) {}
machine_meter::~machine_meter() = default;

machine_limits machine_meter::now() {
    const auto start = std::chrono::steady_clock::now();
    machine_limits& limits = state_->limits;
    if (start - state_->measured < moment) return limits;
    limits = {};
    for (std::size_t kind = 0; kind < arithmetic_kinds; ++kind)
        for (int i = 0; i < 3; ++i)
            limits.operations_per_second[kind] =
                std::max(limits.operations_per_second[kind],
                         measure_operations_per_second(static_cast<arithmetic>(kind), state_->threads));
    for (int i = 0; i < 3; ++i)
        limits.bytes_per_second = std::max(limits.bytes_per_second, state_->bandwidth(state_->pass));
    state_->measured = std::chrono::steady_clock::now();
    return limits;
}

}  // namespace tiffin_bench
