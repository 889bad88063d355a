// The backends that the C interface offers, each compiled in a file of its own: a minute each.
#pragma once

#include <tiffin/io/described_layer.hpp>

TIFFIN_BEGIN
namespace c_detail {

// How simd keeps numbers. The other backends keep f32.
struct kept_numbers {
    any_format weights{}, tables{};
    bool round_activations = true;
};

// io::load_layer for one backend.
result<any_layer> load_on_simd(const io::described_layer& from, const kept_numbers& kept,
                               const prepare_options& how);
result<any_layer> load_on_eigen(const io::described_layer& from, const prepare_options& how);
result<any_layer> load_on_reference(const io::described_layer& from, const prepare_options& how);

}  // namespace c_detail
TIFFIN_END
