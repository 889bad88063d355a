// The kernels of all formats and one composition, compiled for one instruction set after the other, as consumers
// compile them: what a compiler warns of is often seen by its optimiser alone, and for one set only.
#include <tiffin/tiffin.hpp>

TIFFIN_BEGIN
namespace simd_detail {

const weight_kernels* kernels_of_all_formats(const number_formats& formats, bool paired_weights) {
    using arch = xsimd::default_arch;
    return paired_weights ? &kernels_for<arch, any_format, paired>(formats)
                          : &kernels_for<arch, any_format, f32>(formats);
}

}  // namespace simd_detail

template result<layer<stem_hybrid, simd<>>> try_prepare<stem_hybrid>(const weights&, const simd<>&,
                                                                     const prepare_options&);
TIFFIN_END
