// Weights and tables in smaller formats, one of single numbers and two of blocks.
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
    add_in<tiffin::q4_0>(list, "q4_0");
    add<tiffin::simd<tiffin::bf16, tiffin::bf16>>(list, "stem bf16 2048x8192", tiffin::stem{}, large_sizes);
    add<tiffin::simd<tiffin::q4_0, tiffin::q4_0>>(list, "stem q4_0 2048x8192", tiffin::stem{}, large_sizes);
}

}  // namespace tiffin_compare
