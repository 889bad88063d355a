// The system's permission to use the tile registers of AMX, which a process must request.
#pragma once

#include <tiffin/cpu/simd/amx.hpp>

#if TIFFIN_AMX_INSTRUCTIONS
#    include <sys/syscall.h>
#    include <unistd.h>
#endif

TIFFIN_BEGIN

// Whether this process may use the tile registers: they were requested, and compiler flags, machine and system
// support them. Layers of the simd backend check it in prepare(): without permission they use the vector units, with
// the same bits for weights of quantised integers, and another order of addition for bf16.
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

// Requests the tile registers from the system, for all threads of this process and irrevocably; true where layers
// prepared from now on use them. Only the caller requests them, never a layer. Repeated requests do nothing.
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
