// The engine and the kernels of the simd backend, over xsimd registers.
#pragma once

#include <tiffin/cpu/engine.hpp>
#include <tiffin/cpu/simd/backend.hpp>
#include <tiffin/cpu/simd/machine.hpp>

#if defined(TIFFIN_COMPILED_ENGINES)
#    include <tiffin/plan/policies.hpp>

#    include <vector>
#endif

// With the compiled library its engine is linked, not instantiated.
#if defined(TIFFIN_COMPILED)
TIFFIN_BEGIN
namespace cpu_detail {
using simd_machine_here = simd_detail::machine<simd_detail::default_arch>;
TIFFIN_ENGINE_OF_(TIFFIN_COMPILED_ENGINE_, simd_machine_here)
}  // namespace cpu_detail
#    if defined(TIFFIN_COMPILED_ENGINES)
namespace plan_detail {
TIFFIN_COMPILED_OTHER_ENGINE_ template void add_library_policies<cpu_detail::simd_machine_here>(
    std::vector<policy_line>&);
}  // namespace plan_detail
#    endif
TIFFIN_END
#endif
