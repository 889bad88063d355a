// Prepares the blocks of layer files for training.
#pragma once

#include <tiffin/io/described_layer.hpp>
#include <tiffin/train/prepare_training.hpp>

TIFFIN_BEGIN
namespace io {

// Prepares the described block for training, with the policies `known`. The tensors must outlive the layer.
// Errors: those of composition_of(), compose() and try_prepare_training().
// Cost: that of try_prepare_training(). Source: docs/layer_files.md.
template <trains Backend, policy_list Policies>
result<trainable_layer<training_number<Backend>>> load_training_layer(
    const described_layer& from, const Backend& backend,
    const training_options<training_number<Backend>>& how, const Policies& known) {
    auto text = composition_of(from);
    if (!text) return text.failure();
    auto block = compose<typename training<Backend>::machine>(*text, known);
    if (!block) return block.failure();
    return try_prepare_training(*block, from.tensors, backend, how);
}
// The same with all policies of the library.
template <trains Backend>
result<trainable_layer<training_number<Backend>>> load_training_layer(
    const described_layer& from, const Backend& backend,
    const training_options<training_number<Backend>>& how = {}) {
    return load_training_layer(from, backend, how, all_policies);
}

}  // namespace io
TIFFIN_END
