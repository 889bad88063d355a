// Layer files on a CUDA device, for programs that a CUDA compiler need not read.
#pragma once

#include <tiffin/dtype.hpp>
#include <tiffin/error.hpp>
#include <tiffin/runtime/any_layer.hpp>

#include <filesystem>

// `format`: f32 or bf16, in which the device keeps weights, tables and activations.
tiffin::result<tiffin::any_layer> open_layer_on_device(const std::filesystem::path& path,
                                                       tiffin::dtype format);
