// Layer files on every backend, compiled once for all programs that read them: each backend takes a minute.
#pragma once

#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/format/any_format.hpp>
#include <tiffin/io/layer_file.hpp>
#include <tiffin/reference/reference.hpp>

using simd_of_any_format = tiffin::simd<tiffin::any_format, tiffin::any_format>;

#define TIFFIN_LAYER_FILES(DECLARATION, BACKEND)                                            \
    DECLARATION template tiffin::result<tiffin::any_layer> tiffin::io::load_layer<BACKEND>( \
        const tiffin::io::described_layer&, const BACKEND&, const tiffin::prepare_options&)

TIFFIN_LAYER_FILES(extern, tiffin::reference<>);
TIFFIN_LAYER_FILES(extern, tiffin::eigen);
TIFFIN_LAYER_FILES(extern, simd_of_any_format);
