// Weights and tables in smaller formats, one of single numbers and one of blocks.
#include "layer_sets.hpp"

namespace tiffin_compare {

namespace {

template <class Format>
void add_in(layer_list& list, const std::string& format) {
    using backend = tiffin::simd<Format, Format>;
    add<backend>(list, "swiglu " + format, tiffin::swiglu{});
    add<backend>(list, "stem " + format, tiffin::stem{});
    add<backend>(list, "retoken_folded<swiglu> " + format, tiffin::retoken_folded<tiffin::swiglu>{});
    tiffin::block_shape sizes = dense_sizes;
    sizes.experts = 4;
    add<backend>(list, "mort<swiglu> " + format, told_mort<tiffin::swiglu>(), sizes);
}

}  // namespace

void add_layers_in_formats(layer_list& list) {
    add_in<tiffin::bf16>(list, "bf16");
    add_in<tiffin::q8_0>(list, "q8_0");
}

}  // namespace tiffin_compare
