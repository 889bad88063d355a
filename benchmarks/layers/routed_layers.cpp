// What has a router: f32.
#include "layer_subject.hpp"

namespace tiffin_bench {

void add_routed_layers(const layer_choice& choice) {
    const shape& s = choice.sizes;
    const tiffin::block_shape bank{.experts = 16, .rank = 16}, experts{.experts = 16, .choices = 2};
    if (choice.wants("structmoe")) add_layer<tiffin::structmoe>("structmoe", s, {}, bank);
    if (choice.wants("structmoe_gated")) add_layer<tiffin::structmoe_gated>("structmoe_gated", s, {}, bank);
    if (choice.wants("structmoe_post")) add_layer<tiffin::structmoe_post>("structmoe_post", s, {}, bank);
    if (choice.wants("structmoe_down")) add_layer<tiffin::structmoe_down>("structmoe_down", s, {}, bank);
    if (choice.wants("moe")) add_layer<tiffin::moe<tiffin::swiglu>>("moe", s, {{2}, {}, {}}, experts);
    if (choice.wants("moe_stem")) add_layer<tiffin::moe<tiffin::stem>>("moe_stem", s, {{2}, {}, {}}, experts);
    if (choice.wants("mole")) add_layer<tiffin::mole>("mole", s, {}, {.experts = 8});
    // Four experts of a quarter, and one beside them.
    if (choice.wants("mole_training"))
        add_layer<tiffin::mole_training>("mole_training", {s.d_model, s.d_ff / 4}, {}, {.experts = 4});
    if (choice.wants("hash_moe")) add_layer<tiffin::hash_moe<tiffin::swiglu>>("hash_moe", s, {}, experts);
}

}  // namespace tiffin_bench
