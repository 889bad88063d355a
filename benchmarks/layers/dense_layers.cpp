// Dense blocks, and those in which a table stands for a weight: f32.
#include "layer_subject.hpp"

namespace tiffin_bench {

void add_dense_layers(const layer_choice& choice) {
    const shape& s = choice.sizes;
    if (choice.wants("mlp")) add_layer<tiffin::mlp>("mlp", s);
    if (choice.wants("swiglu")) add_layer<tiffin::swiglu>("swiglu", s);
    if (choice.wants("stem")) add_layer<tiffin::stem>("stem", s);
    if (choice.wants("stem_gate")) add_layer<tiffin::stem_gate>("stem_gate", s);
    if (choice.wants("stem_hybrid")) add_layer<tiffin::stem_hybrid>("stem_hybrid", s);
}

}  // namespace tiffin_bench
