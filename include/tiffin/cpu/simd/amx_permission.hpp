// The system's permission to use the tile registers of AMX, which a process has to ask for.
#pragma once

#include <tiffin/cpu/simd/amx.hpp>

#if TIFFIN_AMX_INSTRUCTIONS
#    include <sys/syscall.h>
#    include <unistd.h>
#endif

TIFFIN_BEGIN

// Whether this process may use the tile registers: it has asked, and compiler flags, machine and system have them.
// Layers of the simd backend look when they are prepared: without permission they do with the vector units, which
// gives the same bits for weights of whole numbers, and sums added in another order for bf16.
// Cost: a system call.
[[nodiscard]] inline bool amx_permitted() noexcept {
#if defined(TIFFIN_EMULATE_AMX)
    return true;
#elif TIFFIN_AMX_INSTRUCTIONS
    constexpr long get_permissions = 0x1022;  // ARCH_GET_XCOMP_PERM
    constexpr unsigned long tile_data = 1ul << 18;
    unsigned long permitted = 0;
    return syscall(SYS_arch_prctl, get_permissions, &permitted) == 0 && (permitted & tile_data) != 0;
#else
    return false;
#endif
}

// Asks the system for the tile registers, for all threads of this process and for good; true where layers that are
// prepared from now on use them. The process is the caller's: no layer asks by itself. To ask again does nothing.
// Errors: false where the program was not compiled for AMX, or machine or system (Linux before 5.16) have none, or a
//   thread has a signal stack that is too small for 8 KiB more.
// Source: Linux, Documentation/arch/x86/xstate.rst.
inline bool permit_amx() noexcept {
#if TIFFIN_AMX_INSTRUCTIONS
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
    syscall(SYS_arch_prctl, request_permission, tile_data);
#endif
    return amx_permitted();
}

TIFFIN_END
