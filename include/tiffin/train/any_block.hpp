// Blocks that are known only at run time, and learn.
#pragma once

#include <tiffin/runtime/any_block.hpp>
#include <tiffin/train/prepare_training.hpp>

TIFFIN_BEGIN

// Stands for a backend in any_block where the block is to learn on it: any_block<training<simd<>>>.
template <trains Backend>
struct training {};

namespace detail {

template <class Backend>
struct target_of<training<Backend>> {
    using machine = typename training_machine<Backend>::type;
    using rows = train_detail::trained_rows<typename machine::number>;
    using preparation = train_detail::training_preparation<typename machine::number>;
    template <class Block>
    using held = typename train_detail::rows_that_learn<machine, Block>::type;
};

}  // namespace detail

TIFFIN_END
