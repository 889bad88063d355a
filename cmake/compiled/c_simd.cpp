#include "c_backends.hpp"

#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/format/any_format.hpp>

TIFFIN_BEGIN

// Once for whoever links this.
template result<any_layer> io::load_layer(const io::described_layer&, const simd<any_format, any_format>&,
                                          const prepare_options&);

namespace c_detail {

result<any_layer> load_on_simd(const io::described_layer& from, const kept_numbers& kept,
                               const prepare_options& how) {
    const simd<any_format, any_format> backend{kept.weights, kept.tables, {kept.round_activations}};
    return io::load_layer(from, backend, how);
}

}  // namespace c_detail
TIFFIN_END
