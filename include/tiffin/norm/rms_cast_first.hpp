#pragma once

#include <tiffin/norm/rms.hpp>

TIFFIN_BEGIN

// The norm rms_cast_first(x) = w * cast(x * rsqrt(mean(x^2) + eps)), where cast rounds to the format
// of the activations.
// Shapes, cost: those of rms.
// Numerics: formulas are evaluated in f32 (in double by `reference`), so this is rms but for the default
//   eps. With bf16 activations (cuda<bf16>) the result is rounded once, after the product with w. The
//   published code rounds before that product too, so the two differ by at most that one rounding to the
//   activations' format.
// Source: Llama, Qwen.
struct rms_cast_first : rms {
    constexpr rms_cast_first() : rms{1e-6f} {}
    constexpr explicit rms_cast_first(float epsilon) : rms{epsilon} {}
};

TIFFIN_END
