// The FFN and STEM: f32.
#include "layer_sets.hpp"

namespace tiffin_compare {

void add_dense_layers(layer_list& list) {
    add(list, "mlp", tiffin::mlp{});
    add(list, "swiglu", tiffin::swiglu{});
    add(list, "stem", tiffin::stem{});
    add(list, "stem_gate", tiffin::stem_gate{});
    add(list, "stem_hybrid", tiffin::stem_hybrid{});
}

}  // namespace tiffin_compare
