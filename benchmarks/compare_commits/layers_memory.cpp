// Memories, modulated outputs, and blocks side by side: f32.
#include "layer_sets.hpp"

#include <array>
#include <tuple>

namespace tiffin_compare {

void add_memory_layers(layer_list& list) {
    add(list, "meki", tiffin::meki{}, memory_sizes);
    add(list, "meki_training", tiffin::meki_training{}, memory_sizes);
    add(list, "ple_given", tiffin::ple_given{}, memory_sizes);
    add(list, "retoken<swiglu>", tiffin::retoken<tiffin::swiglu>{});
    add(list, "retoken_folded<swiglu>", tiffin::retoken_folded<tiffin::swiglu>{});

    static constexpr std::array<tiffin::block_shape, 2> beside{{dense_sizes, memory_sizes}};
    tiffin::block_shape sizes = dense_sizes;
    sizes.parts = beside.data();
    add(list, "parallel<swiglu,meki>", tiffin::parallel<tiffin::swiglu, tiffin::meki>{}, sizes);

    tiffin::parallel<tiffin::swiglu, tiffin::delayed<tiffin::source_block<tiffin::modulator_pool<>>, 2>>
        carried;
    tell_layers(std::get<1>(carried.branches).block);
    sizes = dense_sizes;
    sizes.experts = 4;
    add(list, "parallel<swiglu,delayed<pool>>", carried, sizes);
}

}  // namespace tiffin_compare
