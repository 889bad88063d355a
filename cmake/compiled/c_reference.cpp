#include "c_backends.hpp"

#include <tiffin/reference/reference.hpp>

TIFFIN_BEGIN

// Once for whoever links this.
template result<any_layer> io::load_layer(const io::described_layer&, const reference<>&,
                                          const prepare_options&);

namespace c_detail {

result<any_layer> load_on_reference(const io::described_layer& from, const prepare_options& how) {
    return io::load_layer(from, reference<>{}, how);
}

}  // namespace c_detail
TIFFIN_END
