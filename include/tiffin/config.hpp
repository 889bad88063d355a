// Compiler and instruction-set facts that every other header relies on.
#pragma once

#define TIFFIN_VERSION_MAJOR 0
#define TIFFIN_VERSION_MINOR 1
#define TIFFIN_VERSION_PATCH 0

#if !defined(__cpp_concepts) || __cplusplus < 202002L
#    error "tiffin needs C++20: compile with -std=c++20 or later (g++ 12, clang 14 or newer)"
#endif

// NaN and infinities are ordinary values here: routing, limits and weight checks depend on them. Bit-identical
// results at every batch size depend on the order of additions. -ffast-math silently breaks all of it; of its parts,
// -fassociative-math and -freciprocal-math, which define no macro, break bit-identity.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#    error "tiffin needs NaN, infinities and the order of additions: compile without -ffast-math"
#endif

// Headers of some systems (windows.h without NOMINMAX) define these, and std::min and std::max no longer parse.
#if defined(min) || defined(max)
#    error \
        "tiffin needs std::min and std::max: undefine the macros min and max, or define NOMINMAX, before it"
#endif

// Scalar formulas are also device functions under a CUDA compiler.
#if defined(__CUDACC__)
#    define TIFFIN_HD __host__ __device__
#else
#    define TIFFIN_HD
#endif

// Marks functions of headers that tiffin::compiled contains: a program that links it does not compile them.
// TIFFIN_DEFINITIONS: whether their definitions are to be read.
#if defined(TIFFIN_COMPILED)
#    define TIFFIN_INLINE
#else
#    define TIFFIN_INLINE inline
#endif
#if defined(TIFFIN_COMPILED) && !defined(TIFFIN_COMPILED_KERNELS_HERE_)
#    define TIFFIN_DEFINITIONS 0
#else
#    define TIFFIN_DEFINITIONS 1
#endif
// The same of tiffin::engines, which fewer programs need.
#if defined(TIFFIN_COMPILED_ENGINES)
#    define TIFFIN_ENGINES_INLINE
#else
#    define TIFFIN_ENGINES_INLINE inline
#endif
#if defined(TIFFIN_COMPILED_ENGINES) && !defined(TIFFIN_COMPILED_ENGINES_HERE_)
#    define TIFFIN_ENGINES_DEFINITIONS 0
#else
#    define TIFFIN_ENGINES_DEFINITIONS 1
#endif
// Before an explicit instantiation that tiffin::compiled contains: of the simd engine, and of the other backends' and of
// training, which tiffin::engines has.
#if defined(TIFFIN_COMPILED_KERNELS_HERE_)
#    define TIFFIN_COMPILED_ENGINE_
#else
#    define TIFFIN_COMPILED_ENGINE_ extern
#endif
#if defined(TIFFIN_COMPILED_ENGINES_HERE_)
#    define TIFFIN_COMPILED_OTHER_ENGINE_
#else
#    define TIFFIN_COMPILED_OTHER_ENGINE_ extern
#endif

#if defined(__cpp_exceptions)
#    define TIFFIN_EXCEPTIONS 1
#else
#    define TIFFIN_EXCEPTIONS 0
#endif

#include <tiffin/instruction_set.hpp>

#define TIFFIN_BEGIN   \
    namespace tiffin { \
    inline namespace TIFFIN_ABI {
#define TIFFIN_END \
    }              \
    }
