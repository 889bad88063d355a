// expect: tiffin: prepare_training: a source has a tensor of a kind that cannot be trained
#include <tiffin/layers.hpp>
#include <tiffin/train/reference.hpp>

#include "source_of_a_new_kind.hpp"

void learn(const tiffin::weights& given) {
    static_cast<void>(tiffin::try_prepare_training<tiffin::ffn<tiffin::gate<tiffin::silu>, own_source>>(
        given, tiffin::reference<>{}));
}
