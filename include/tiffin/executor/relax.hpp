// The spin-wait hint of the machine.
#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN
namespace detail {

// Yields the core to its other hardware thread for a moment.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

}  // namespace detail
TIFFIN_END
