// What has a router: f32.
#include "layer_sets.hpp"

namespace tiffin_compare {

void add_routed_layers(layer_list& list) {
    tiffin::block_shape sizes = dense_sizes;
    sizes.experts = sizes.rank = 16;
    add(list, "structmoe", tiffin::structmoe{}, sizes);
    add(list, "structmoe_gated", tiffin::structmoe_gated{}, sizes);
    add(list, "structmoe_down", tiffin::structmoe_down{}, sizes);

    sizes.experts = 4;
    add(list, "mort<swiglu>", told_mort<tiffin::swiglu>(), sizes);
    tiffin::moe<tiffin::swiglu> moe;
    moe.router.top_k = 2;
    add(list, "moe<swiglu>", moe, sizes);
    sizes.choices = 2;
    add(list, "hash_moe<swiglu>", tiffin::hash_moe<tiffin::swiglu>{}, sizes);
}

}  // namespace tiffin_compare
