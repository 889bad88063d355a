// The FFN and STEM: f32.
#include "layer_sets.hpp"

namespace tiffin_compare {

void add_dense_layers(layer_list& list) {
    add(list, "mlp", tiffin::mlp{});
    add(list, "swiglu", tiffin::swiglu{});
    add(list, "stem", tiffin::stem{});
    add(list, "stem_gate", tiffin::stem_gate{});
    add(list, "stem_hybrid", tiffin::stem_hybrid{});
    add(list, "swiglu 2048x8192", tiffin::swiglu{}, large_sizes);
    add(list, "stem 2048x8192", tiffin::stem{}, large_sizes);
    add(list, "swiglu 576x1536", tiffin::swiglu{}, small_sizes);
    add(list, "stem 576x1536", tiffin::stem{}, small_sizes);
    add(list, "stem_hybrid 576x1536", tiffin::stem_hybrid{}, small_sizes);
}

}  // namespace tiffin_compare
