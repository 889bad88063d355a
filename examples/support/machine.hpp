// What a program asks the machine before it measures on it: Linux's answers, and guesses elsewhere.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include <sys/resource.h>
#include <unistd.h>
#if defined(__linux__)
#    include <sched.h>
#endif

// Bytes of the last-level caches of the processors that this process may run on, all together.
inline std::size_t last_level_cache_bytes() {
    std::map<std::string, std::size_t> caches;  // by the processors that share one
#if defined(__linux__)
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        int last = 0;
        std::size_t size = 0;
        std::string shared;
        for (int index = 0;; ++index) {
            const std::string at = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" +
                                   std::to_string(index) + "/";
            int level = 0;
            std::size_t kib = 0;
            std::string with;
            if (!(std::ifstream(at + "level") >> level)) break;
            if (level <= last || !(std::ifstream(at + "size") >> kib)) continue;  // "32768K"
            std::ifstream(at + "shared_cpu_list") >> with;
            last = level;
            size = kib << 10;
            shared = std::move(with);
        }
        if (size > 0) caches[shared] = size;
    }
#endif
    std::size_t all = 0;
    for (const auto& [shared, size] : caches) all += size;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    if (const long one = sysconf(_SC_LEVEL3_CACHE_SIZE); all == 0 && one > 0)
        all = static_cast<std::size_t>(one);
#endif
    return all > 0 ? all : std::size_t{32} << 20;
}

// Bytes that the process may still take without the machine, its container or its limits being exceeded.
inline double available_memory_bytes() {
    double least = std::numeric_limits<double>::infinity();
    std::ifstream info("/proc/meminfo");
    for (std::string key, rest; info >> key && std::getline(info, rest);)
        if (key == "MemAvailable:") least = 1024 * std::stod(rest);
    // A container's: version 2 of control groups, then 1. Where there is no limit: "max", or a huge number.
    for (const auto& [limit, used] :
         {std::pair{"memory.max", "memory.current"},
          std::pair{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"}}) {
        double most = 0, now = 0;
        const std::string root = "/sys/fs/cgroup/";
        if (std::ifstream(root + limit) >> most && std::ifstream(root + used) >> now)
            least = std::min(least, std::max(most - now, 0.0));
    }
    if (::rlimit limit{}; ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        least = std::min(least, static_cast<double>(limit.rlim_cur));
    return least;
}

// How much others were in the way while something was measured.
class machine_load {
public:
    explicit machine_load(std::size_t threads) : threads_(static_cast<double>(threads)) {}

    struct share {
        double waiting = 0;  // of the threads' time: ready to run, and another process on the core
        double stolen = 0;   // of the machine's time: taken by its host
        [[nodiscard]] bool busy() const { return waiting > 0.1 || stolen > 0.1; }
    };
    // Since this object was made.
    [[nodiscard]] share now() const {
        const reading at = read();
        const double seconds = std::chrono::duration<double>(at.time - start_.time).count();
        if (seconds <= 0) return {};
        share of{(at.waited - start_.waited) / (seconds * threads_), 0};
        if (at.ticks > start_.ticks) of.stolen = (at.stolen - start_.stolen) / (at.ticks - start_.ticks);
        return of;
    }

private:
    struct reading {
        std::chrono::steady_clock::time_point time;
        double waited = 0;  // seconds, all threads
        double stolen = 0, ticks = 0;
    };
    static reading read() {
        reading made{.time = std::chrono::steady_clock::now()};
        std::error_code none;
        bool told = false;
        for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", none)) {
            double ran = 0, waited = 0;
            if (!(std::ifstream(task.path() / "schedstat") >> ran >> waited)) continue;
            told = true;
            made.waited += 1e-9 * waited;
        }
        if (!told) {  // a kernel that does not count it: a time slice for each time that a thread lost its core
            ::rusage usage{};
            ::getrusage(RUSAGE_SELF, &usage);
            made.waited = 4e-3 * static_cast<double>(usage.ru_nivcsw);
        }
        std::ifstream stat("/proc/stat");
        std::string cpu;
        stat >> cpu;
        double value = 0;
        for (int column = 0; column < 8 && stat >> value; ++column) {
            made.ticks += value;
            if (column == 7) made.stolen = value;
        }
        return made;
    }

    double threads_;
    reading start_ = read();
};
