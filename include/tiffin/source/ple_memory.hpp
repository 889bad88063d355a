#pragma once

#include <tiffin/error.hpp>
#include <tiffin/grammar/option.hpp>
#include <tiffin/scalar.hpp>
#include <tiffin/source/memory.hpp>

#include <cmath>
#include <string_view>
#include <tuple>

TIFFIN_BEGIN

// A source times half powers of its row's width and of 2: z = width^(Width / 2) 2^(Two / 2) source.
// Shapes: source, z (T, width). Numerics: the two roots in the backend's scalar. Cost: about two operations
//   per element. Source: the scales of Gemma 3n's embeddings, docs/layers.md#ple.
template <source_policy Source, int Width = 0, int Two = 0>
struct times_roots {
    static_assert(Width >= -1 && Width <= 1 && Two >= -1 && Two <= 1,
                  "tiffin: times_roots<Source, Width, Two>: a power is -1, 0 or 1");
    using tensors = tensor_list<row_width>;
    static constexpr std::string_view name = "";

    Source input{};
    int width = Width;
    int two = Two;

    static constexpr auto options() noexcept {
        return std::tuple(option{"width", &times_roots::width}, option{"two", &times_roots::two});
    }
    [[nodiscard]] status check() const {
        for (const int power : {width, two})
            if (power < -1 || power > 1)
                return failure(errc::option, "times_roots", "has a power of ", power, "; it is -1, 0 or 1");
        return {};
    }
    TIFFIN_HD constexpr std::tuple<const Source&> parts() const noexcept { return {input}; }
    [[nodiscard]] constexpr double flops() const noexcept {
        return (width != 0 ? 1 : 0) + (two != 0 ? 1 : 0);
    }

    template <class Place, class Value>
    TIFFIN_HD Value operator()(const Place& at, const Value& v) const {
        using std::sqrt;
        Value z = v;
        if (width > 0) z = z * sqrt(at[row_width{}]);
        if (width < 0) z = z / sqrt(at[row_width{}]);
        if (two != 0) z = z * constant<Value>(two > 0 ? 0x1.6a09e667f3bcdp+0 : 0x1.6a09e667f3bcdp-1);
        return z;
    }
};

// PLE's row with its context term: p = (rms(W e d^-1/2) + width^1/2 P[t]) 2^-1/2, e = E[t].
// Shapes: `word_embed.weight` (vocab, d), `per_layer_model_projection.weight` (width, d),
//   `per_layer_projection_norm.weight` (width), `memory.weight` (vocab, width).
// Numerics: W e in f32, eps 1e-6. It depends on the token id alone: fold() makes it a table for `ple`.
// Cost: two rows and 2 d width FLOPs per token. Source: Gemma 3n, docs/layers.md#ple.
using ple_memory =
    times_roots<sum<normed<memory_norm,
                           through<"", times_roots<named<token_embedding, "word_embed">, -1, 0>,
                                   named<dense, "per_layer_model_projection">>,
                           "per_layer_projection_norm">,
                    times_roots<memory_injection, 1, 0>>,
                0, -1>;

TIFFIN_END
