// The engine and the kernels of the simd backend, over xsimd registers.
#pragma once

#include <tiffin/cpu/engine.hpp>
#include <tiffin/cpu/simd/backend.hpp>
#include <tiffin/cpu/simd/machine.hpp>

// With the compiled library its engine is linked, not instantiated.
#if defined(TIFFIN_COMPILED) && !defined(TIFFIN_COMPILED_KERNELS_HERE_)
#    define TIFFIN_COMPILED_ENGINE_ extern
#else
#    define TIFFIN_COMPILED_ENGINE_
#endif
#if defined(TIFFIN_COMPILED)
TIFFIN_BEGIN
namespace cpu_detail {
using compiled_machine = simd_detail::machine<xsimd::default_arch>;
TIFFIN_COMPILED_ENGINE_ template class layer_of_plan<compiled_machine>;
#    define TIFFIN_COMPILED_ROLE_(role) \
        TIFFIN_COMPILED_ENGINE_ template struct functions_of<compiled_machine, detail::node_role::role>;
TIFFIN_COMPILED_ROLE_(formula)
TIFFIN_COMPILED_ROLE_(chain)
TIFFIN_COMPILED_ROLE_(row_norm)
TIFFIN_COMPILED_ROLE_(row_dot)
TIFFIN_COMPILED_ROLE_(routed)
TIFFIN_COMPILED_ROLE_(row)
TIFFIN_COMPILED_ROLE_(mixture)
TIFFIN_COMPILED_ROLE_(residual)
TIFFIN_COMPILED_ROLE_(delay)
TIFFIN_COMPILED_ROLE_(repeated)
#    undef TIFFIN_COMPILED_ROLE_
}  // namespace cpu_detail
TIFFIN_END
#endif
#undef TIFFIN_COMPILED_ENGINE_
