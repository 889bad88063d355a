// What a thread does while it watches memory.
#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN
namespace detail {

// Lets the other thread of the core go first for a moment.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

}  // namespace detail
TIFFIN_END
