// The named layers for tiffin::compiled: declared here, compiled once in the library. A program that includes this and
// links the library compiles neither kernels nor these layers. For blocks of your own, include cpu/simd/simd.hpp too;
// their kernels come from the library.
//
//     target_link_libraries(you PRIVATE tiffin::compiled)
//     #include <tiffin/compiled.hpp>
//
// The library is compiled for one instruction set, that of TIFFIN_COMPILED_FLAGS (default: -march=native). Files that
// link it must be compiled for the same set; else the linker reports missing symbols, whose names contain the set.
#pragma once

#if !defined(TIFFIN_COMPILED)
#    error \
        "tiffin/compiled.hpp is for what links tiffin::compiled; without the library include <tiffin/tiffin.hpp>"
#endif

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/backend.hpp>
#include <tiffin/layers.hpp>

// X(layer) for each layer in the library, for simd<> and for simd<any_format, any_format>.
#define TIFFIN_COMPILED_DENSE_(X) X(mlp) X(swiglu) X(geglu) X(reglu)
#define TIFFIN_COMPILED_STEM_(X) X(stem) X(stem_gate) X(stem_hybrid) X(moe<swiglu>) X(moe<stem>)
#define TIFFIN_COMPILED_ROUTED_(X) X(structmoe) X(structmoe_gated) X(structmoe_post) X(structmoe_down)
#define TIFFIN_COMPILED_MEMORY_(X) X(meki) X(meki_training) X(ple) X(ple_full) X(ple_given)
#define TIFFIN_COMPILED_MODULATED_(X) X(retoken<swiglu>) X(retoken_folded<swiglu>) X(mort<swiglu>)

#define TIFFIN_COMPILED_LAYER_(Layer)                                                       \
    TIFFIN_COMPILED_EXTERN_ template result<layer<Layer, simd<>>> detail::prepare_here(     \
        const Layer&, const weights&, const simd<>&, const prepare_options&);               \
    TIFFIN_COMPILED_EXTERN_ template result<layer<Layer, simd<any_format, any_format>>>     \
    detail::prepare_here(const Layer&, const weights&, const simd<any_format, any_format>&, \
                         const prepare_options&);

// The library's own sources define this as empty, and instantiate these lists themselves.
#if !defined(TIFFIN_COMPILED_EXTERN_)
#    define TIFFIN_COMPILED_EXTERN_ extern
TIFFIN_BEGIN
TIFFIN_COMPILED_DENSE_(TIFFIN_COMPILED_LAYER_)
TIFFIN_COMPILED_STEM_(TIFFIN_COMPILED_LAYER_)
TIFFIN_COMPILED_ROUTED_(TIFFIN_COMPILED_LAYER_)
TIFFIN_COMPILED_MEMORY_(TIFFIN_COMPILED_LAYER_)
TIFFIN_COMPILED_MODULATED_(TIFFIN_COMPILED_LAYER_)
TIFFIN_END
#endif
