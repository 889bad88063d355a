// Layer files on a CUDA device, for programs that a CUDA compiler need not read.
#pragma once

#include <tiffin/dtype.hpp>
#include <tiffin/io/described_layer.hpp>

// The device behind the interface of the CPU's backends; `format`, f32 or bf16, is what it keeps weights, tables and
// activations in.
struct device_backend {
    tiffin::dtype format;
};

// As tiffin::io::load_layer, of the layers in blocks_on_device.hpp.
tiffin::result<tiffin::any_layer> load_layer(const tiffin::io::described_layer& given,
                                             const device_backend& backend,
                                             const tiffin::prepare_options& options = {.tokens = 0});
