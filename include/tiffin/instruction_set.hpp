// The instruction set as part of every symbol's name. Two translation units of one program may be compiled with
// different -m flags. With equal names the linker would keep one copy of each inline function, and an older machine
// could run instructions of the newer set. So the mark contains every set that a compiler may use by itself, whether
// or not the kernels use it explicitly.
#pragma once

// Tile registers: native, or emulated for tests. clang 14 has no underscore in these macro names.
#if defined(TIFFIN_EMULATE_AMX)
#    define TIFFIN_AMX_INSTRUCTIONS 0
#    define TIFFIN_MARK_AMX_ e
#elif ((defined(__AMX_BF16__) && defined(__AMX_INT8__)) || \
       (defined(__AMXBF16__) && defined(__AMXINT8__))) &&  \
    defined(__linux__)
#    define TIFFIN_AMX_INSTRUCTIONS 1
#    define TIFFIN_MARK_AMX_ t
#else
#    define TIFFIN_AMX_INSTRUCTIONS 0
#    define TIFFIN_MARK_AMX_
#endif
#if TIFFIN_EXCEPTIONS
#    define TIFFIN_MARK_EXCEPTIONS_
#else
#    define TIFFIN_MARK_EXCEPTIONS_ n
#endif

#if defined(__AVX512F__)
#    define TIFFIN_MARK_VECTOR_ x512
#elif defined(__AVX2__)
#    define TIFFIN_MARK_VECTOR_ x256i
#elif defined(__AVX__)
#    define TIFFIN_MARK_VECTOR_ x256
#elif defined(__SSE4_2__)
#    define TIFFIN_MARK_VECTOR_ x128_42
#elif defined(__SSE4_1__)
#    define TIFFIN_MARK_VECTOR_ x128_41
#elif defined(__SSSE3__)
#    define TIFFIN_MARK_VECTOR_ x128_31
#elif defined(__SSE3__)
#    define TIFFIN_MARK_VECTOR_ x128_3
#elif defined(__SSE2__)
#    define TIFFIN_MARK_VECTOR_ x128_2
#elif defined(__ARM_FEATURE_SVE2)
#    define TIFFIN_MARK_VECTOR_ sve2
#elif defined(__ARM_FEATURE_SVE)
#    define TIFFIN_MARK_VECTOR_ sve
#elif defined(__ARM_NEON)
#    define TIFFIN_MARK_VECTOR_ neon
#else
#    define TIFFIN_MARK_VECTOR_ scalar
#endif

// TIFFIN_MARK_(letters, flag) is `letters` where the compiler defines `flag` as 1, and nothing where it does not.
#define TIFFIN_SECOND_(first, second, ...) second
#define TIFFIN_EXPAND_(...) TIFFIN_SECOND_(__VA_ARGS__)
#define TIFFIN_HOLDER_1 ~,
#define TIFFIN_MARK_OF_(letters, value) TIFFIN_EXPAND_(TIFFIN_HOLDER_##value letters, , )
#define TIFFIN_MARK_(letters, flag) TIFFIN_MARK_OF_(letters, flag)
#define TIFFIN_JOIN_OF_(a, b, c, d, e, f, g, h) a##b##c##d##e##f##g##h
#define TIFFIN_JOIN_(a, b, c, d, e, f, g, h) TIFFIN_JOIN_OF_(a, b, c, d, e, f, g, h)

#if defined(__x86_64__) || defined(__i386__)
#    define TIFFIN_MARK_A_                                                                              \
        TIFFIN_JOIN_(TIFFIN_MARK_(f, __FMA__), TIFFIN_MARK_(h, __F16C__), TIFFIN_MARK_(a, __AVXVNNI__), \
                     TIFFIN_MARK_(w, __AVX512BW__), TIFFIN_MARK_(q, __AVX512DQ__),                      \
                     TIFFIN_MARK_(l, __AVX512VL__), TIFFIN_MARK_(v, __AVX512VNNI__),                    \
                     TIFFIN_MARK_(m, __AVX512VBMI2__))
#    define TIFFIN_MARK_B_                                                                  \
        TIFFIN_JOIN_(TIFFIN_MARK_(b, __AVX512BF16__), TIFFIN_MARK_(p, __AVX512FP16__),      \
                     TIFFIN_MARK_(c, __AVX512CD__), TIFFIN_MARK_(i, __AVX512IFMA__),        \
                     TIFFIN_MARK_(k, __AVX512VBMI__), TIFFIN_MARK_(u, __AVX512VPOPCNTDQ__), \
                     TIFFIN_MARK_(g, __AVX512BITALG__), TIFFIN_MARK_(r, __AVX512ER__))
#    define TIFFIN_MARK_C_                                                                               \
        TIFFIN_JOIN_(TIFFIN_MARK_(B1, __BMI__), TIFFIN_MARK_(B2, __BMI2__), TIFFIN_MARK_(L, __LZCNT__),  \
                     TIFFIN_MARK_(P, __POPCNT__), TIFFIN_MARK_(M, __MOVBE__), TIFFIN_MARK_(F, __FMA4__), \
                     TIFFIN_MARK_(X, __XOP__), TIFFIN_MARK_(T, __TBM__))
#    define TIFFIN_MARK_D_                                                                              \
        TIFFIN_JOIN_(TIFFIN_MARK_(S, __SSE4A__), TIFFIN_MARK_(G, __GFNI__), TIFFIN_MARK_(A, __APX_F__), \
                     TIFFIN_MARK_(V1, __AVX10_1__), TIFFIN_MARK_(V2, __AVX10_2__),                      \
                     TIFFIN_MARK_(I, __AVXIFMA__), TIFFIN_MARK_(N, __AVXNECONVERT__),                   \
                     TIFFIN_MARK_(D, __AVXVNNIINT8__))
#else
#    define TIFFIN_MARK_A_                                                                               \
        TIFFIN_JOIN_(TIFFIN_MARK_(d, __ARM_FEATURE_DOTPROD), TIFFIN_MARK_(m, __ARM_FEATURE_MATMUL_INT8), \
                     TIFFIN_MARK_(h, __ARM_FEATURE_FP16_VECTOR_ARITHMETIC),                              \
                     TIFFIN_MARK_(b, __ARM_FEATURE_BF16_VECTOR_ARITHMETIC),                              \
                     TIFFIN_MARK_(a, __ARM_FEATURE_ATOMICS), TIFFIN_MARK_(c, __ARM_FEATURE_CRC32),       \
                     TIFFIN_MARK_(l, __ARM_FEATURE_FP16_FML), TIFFIN_MARK_(r, __ARM_FEATURE_QRDMX))
#    define TIFFIN_MARK_B_
#    define TIFFIN_MARK_C_
#    define TIFFIN_MARK_D_
#endif
#define TIFFIN_ABI                                                                                          \
    TIFFIN_JOIN_(isa_, TIFFIN_MARK_VECTOR_, TIFFIN_MARK_A_, TIFFIN_MARK_B_, TIFFIN_MARK_C_, TIFFIN_MARK_D_, \
                 TIFFIN_MARK_AMX_, TIFFIN_MARK_EXCEPTIONS_)
