// What the parts of big_table measure with: arguments, numbers, times and memory.
#pragma once

#include <tiffin/dtype.hpp>
#include <tiffin/io/open_file.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace fs = std::filesystem;
using ids_type = std::vector<std::int32_t>;
using clock_type = std::chrono::steady_clock;

struct arguments {
    std::string text;
    std::string folder = ".";
    std::string format = "bf16";
    std::string shape = "1024x4096";
    double gigabytes = 1;
    double cache_percent = 10;
    std::size_t layers = 8;
    std::size_t tokens = 2048;
    std::size_t decode = 64;
    std::size_t threads = std::thread::hardware_concurrency();
    // Told by the above.
    std::size_t d_model = 0, d_ff = 0, vocab = 0;
    tiffin::dtype type = tiffin::dtype::bf16;
};

inline double seconds_since(clock_type::time_point start) {
    return std::chrono::duration<double>(clock_type::now() - start).count();
}

// Numbers from a counter, in [-0.5, 0.5).
inline float number(std::uint64_t i) {
    std::uint64_t z = i * 0xD1B54A32D192ED03u + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 32)) * 0xBF58476D1CE4E5B9u;
    return static_cast<float>(static_cast<std::uint32_t>(z ^ (z >> 29))) * 0x1p-32f - 0.5f;
}
inline std::vector<float> numbers(std::size_t count, float scale) {
    std::vector<float> all(count);
#pragma omp parallel for
    for (std::ptrdiff_t i = 0; i < std::ssize(all); ++i)
        all[static_cast<std::size_t>(i)] = scale * number(static_cast<std::uint64_t>(i));
    return all;
}

inline void drop_cache(const fs::path& path) {
    const auto file = tiffin::io::open_file::open(path).or_throw();
    ::fsync(file.descriptor());
    ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
}

// Memory of this process in bytes: its own, and of files that it has mapped.
struct memory_use {
    double own = 0, mapped = 0;
    static memory_use now() {
        std::ifstream file("/proc/self/statm");
        double all = 0, resident = 0, shared = 0;
        file >> all >> resident >> shared;
        const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
        return {(resident - shared) * page, shared * page};
    }
};

struct line {
    std::string name;
    double prefill = 0, decode = 0;                // tokens per second
    double waited_prefill = 0, waited_decode = 0;  // shares of the time
    double hits = -1;
    memory_use memory{};
};
