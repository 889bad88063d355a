// expect: tiffin: at.tensor.: a tensor of this kind has no value of its own in a formula
#include <tiffin/call/prepare.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "source_of_a_new_kind.hpp"

void prepare(const tiffin::weights& given) {
    static_cast<void>(tiffin::try_prepare<tiffin::ffn<tiffin::gate<tiffin::silu>, own_source>>(
        given, tiffin::reference<>{}));
}
