#pragma once

#include <tiffin/norm/rms.hpp>

TIFFIN_BEGIN

// The norm rms_cast_first(x) = w * cast(x * rsqrt(mean(x^2) + eps)), where cast rounds to the format
// of the activations. Every backend here keeps activations in f32, so it equals rms but for the
// default eps.
// Shapes, numerics, cost: those of rms. Source: Llama, Qwen.
struct rms_cast_first : rms {
    constexpr rms_cast_first() : rms{1e-6f} {}
    constexpr explicit rms_cast_first(float epsilon) : rms{epsilon} {}
};

TIFFIN_END
