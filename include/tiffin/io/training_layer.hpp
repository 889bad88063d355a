// Layer files whose layer learns.
#pragma once

#include <tiffin/io/described_layer.hpp>
#include <tiffin/io/layer_blocks.hpp>
#include <tiffin/train/any_block.hpp>

TIFFIN_BEGIN
namespace io {

// Prepares the block described to learn. The tensors must outlive the layer.
// Errors: errc::option for an unknown or missing block or option, and those of try_prepare_training().
// Cost: that of try_prepare_training(). Source: docs/layer_files.md.
template <trains Backend>
result<trainable_layer<training_number<Backend>>> load_training_layer(
    const described_layer& from, const Backend& backend,
    const training_options<training_number<Backend>>& how = {}) {
    layer_options options(from.options);
    const std::string* const name = options.find("block");
    auto block = detail::block_builder<training<Backend>>(options, from.tensors).build("", "");
    if (!block) return block.failure();
    if (status s = options.check_all_known(*name); !s) return s.failure();
    return try_prepare_training(*block, from.tensors, backend, how);
}

}  // namespace io
TIFFIN_END
