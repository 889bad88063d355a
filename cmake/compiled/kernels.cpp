// The kernels of all formats, what binds weights, and what a call does before it reaches the kernels (see tiffin/compiled.hpp).
#define TIFFIN_COMPILED_KERNELS_HERE_
#define TIFFIN_COMPILED_EXTERN_
#include <tiffin/bind/bind_plan.hpp>
#include <tiffin/call/run_layer.hpp>
#include <tiffin/compiled.hpp>
#include <tiffin/cpu/simd/run_products.hpp>
#include <tiffin/cpu/simd/simd.hpp>

TIFFIN_BEGIN
namespace simd_detail {

// Named once, they are compiled. (Not explicit instantiations: some formats share their kernels.)
const weight_kernels* compiled_kernels(const number_formats& formats, bool rounded) noexcept {
    using arch = default_arch;
    return rounded ? &kernels_for<arch, any_format, paired>(formats)
                   : &kernels_for<arch, any_format, f32>(formats);
}

}  // namespace simd_detail
TIFFIN_END
