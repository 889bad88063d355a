// The machine's hardware threads.
#pragma once

#include <tiffin/config.hpp>

#include <algorithm>
#include <cstddef>

// <thread> takes a compiler 0.1 s.
#if __has_include(<unistd.h>)
#    include <unistd.h>
#else
#    include <thread>
#endif

TIFFIN_BEGIN
namespace detail {

// At least 1.
inline std::size_t hardware_threads() noexcept {
#if __has_include(<unistd.h>)
    return static_cast<std::size_t>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
#else
    return std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
#endif
}

}  // namespace detail
TIFFIN_END
