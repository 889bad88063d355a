// Compiler and instruction-set facts that every other header relies on.
#pragma once

#define TIFFIN_VERSION_MAJOR 0
#define TIFFIN_VERSION_MINOR 1
#define TIFFIN_VERSION_PATCH 0

#if !defined(__cpp_concepts) || __cplusplus < 202002L
#    error "tiffin needs C++20: compile with -std=c++20 or later (g++ 12, clang 14 or newer)"
#endif

// NaN and infinities are numbers here: routes, limits and checks of weights depend on them, and the promise of
// the same bits in whatever batch on additions staying where they are. -ffast-math breaks all of it, silently;
// of its parts -fassociative-math and -freciprocal-math, which no macro tells, break the bits.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#    error "tiffin needs NaN, infinities and the order of additions: compile without -ffast-math"
#endif

// Scalar formulas are shared with the device where a CUDA compiler reads them.
#if defined(__CUDACC__)
#    define TIFFIN_HD __host__ __device__
#else
#    define TIFFIN_HD
#endif

#if defined(__cpp_exceptions)
#    define TIFFIN_EXCEPTIONS 1
#    define TIFFIN_ABI_EXCEPTIONS
#else
#    define TIFFIN_EXCEPTIONS 0
#    define TIFFIN_ABI_EXCEPTIONS n
#endif

// The instruction set is part of every symbol's name. Two translation units of one program may be
// compiled with different -m flags; were the names equal, the linker would keep one copy of each
// inline function and the older machine could run the newer one's instructions.
#if defined(__AVX512BF16__)
#    define TIFFIN_ABI_512BF16 b
#else
#    define TIFFIN_ABI_512BF16
#endif
// Tile registers: by instructions; or emulated, for tests. clang 14 has no underscore in these names.
#if defined(TIFFIN_EMULATE_AMX)
#    define TIFFIN_AMX_INSTRUCTIONS 0
#    define TIFFIN_ABI_AMX e
#elif ((defined(__AMX_BF16__) && defined(__AMX_INT8__)) || \
       (defined(__AMXBF16__) && defined(__AMXINT8__))) &&  \
    defined(__linux__)
#    define TIFFIN_AMX_INSTRUCTIONS 1
#    define TIFFIN_ABI_AMX t
#else
#    define TIFFIN_AMX_INSTRUCTIONS 0
#    define TIFFIN_ABI_AMX
#endif
#if defined(__AVX512FP16__)
#    define TIFFIN_ABI_512FP16 p
#else
#    define TIFFIN_ABI_512FP16
#endif
#if defined(__AVX512VBMI2__)
#    define TIFFIN_ABI_512VBMI2 m
#else
#    define TIFFIN_ABI_512VBMI2
#endif
#if defined(__AVXVNNI__)
#    define TIFFIN_ABI_VNNI a
#elif defined(__ARM_FEATURE_DOTPROD)
#    define TIFFIN_ABI_VNNI d
#else
#    define TIFFIN_ABI_VNNI
#endif
#if defined(__AVX512VNNI__)
#    define TIFFIN_ABI_512VNNI v
#else
#    define TIFFIN_ABI_512VNNI
#endif
#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#    define TIFFIN_ABI_512BW w
#else
#    define TIFFIN_ABI_512BW
#endif
#if defined(__AVX512F__)
#    define TIFFIN_ABI_VECTOR x512
#elif defined(__AVX2__)
#    define TIFFIN_ABI_VECTOR x256i
#elif defined(__AVX__)
#    define TIFFIN_ABI_VECTOR x256
#elif defined(__SSE4_2__)
#    define TIFFIN_ABI_VECTOR x128_42
#elif defined(__SSE4_1__)
#    define TIFFIN_ABI_VECTOR x128_41
#elif defined(__SSSE3__)
#    define TIFFIN_ABI_VECTOR x128_31
#elif defined(__SSE3__)
#    define TIFFIN_ABI_VECTOR x128_3
#elif defined(__SSE2__)
#    define TIFFIN_ABI_VECTOR x128_2
#elif defined(__ARM_FEATURE_SVE)
#    define TIFFIN_ABI_VECTOR sve
#elif defined(__ARM_NEON)
#    define TIFFIN_ABI_VECTOR neon
#else
#    define TIFFIN_ABI_VECTOR scalar
#endif
#if defined(__FMA__)
#    define TIFFIN_ABI_FMA f
#else
#    define TIFFIN_ABI_FMA
#endif
#if defined(__F16C__)
#    define TIFFIN_ABI_F16C h
#else
#    define TIFFIN_ABI_F16C
#endif
#define TIFFIN_ABI_PASTE_(a, b, c, d, e, f, g, h, i, j, k) isa_##a##b##c##d##e##f##g##h##i##j##k
#define TIFFIN_ABI_PASTE(a, b, c, d, e, f, g, h, i, j, k) TIFFIN_ABI_PASTE_(a, b, c, d, e, f, g, h, i, j, k)
#define TIFFIN_ABI                                                                                          \
    TIFFIN_ABI_PASTE(TIFFIN_ABI_VECTOR, TIFFIN_ABI_FMA, TIFFIN_ABI_F16C, TIFFIN_ABI_VNNI, TIFFIN_ABI_512BW, \
                     TIFFIN_ABI_512VNNI, TIFFIN_ABI_512VBMI2, TIFFIN_ABI_512BF16, TIFFIN_ABI_AMX,           \
                     TIFFIN_ABI_512FP16, TIFFIN_ABI_EXCEPTIONS)

#define TIFFIN_BEGIN   \
    namespace tiffin { \
    inline namespace TIFFIN_ABI {
#define TIFFIN_END \
    }              \
    }
