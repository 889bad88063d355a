#pragma once

#include <tiffin/scalar.hpp>
#include <tiffin/source/memory.hpp>

#include <cmath>
#include <cstddef>
#include <string_view>
#include <tuple>

TIFFIN_BEGIN

// A source times a number of its own: z = factor * source. Cost: one operation an element.
template <source_policy Source>
struct times {
    Source input{};
    double factor = 1;

    TIFFIN_HD constexpr std::tuple<const Source&> parts() const noexcept { return {input}; }
    static constexpr double flops() noexcept { return 1; }

    template <class Value>
    TIFFIN_HD Value operator()(const Value& v) const {
        return constant<Value>(factor) * v;
    }
};

// PLE's row with its context term: p = (rms(W e d^-1/2) + width^1/2 P[t]) 2^-1/2, e = E[t].
// Shapes: `word_embed.weight` (vocab, d), `per_layer_model_projection.weight` (width, d),
//   `per_layer_projection_norm.weight` (width), `memory.weight` (vocab, width); d and width are told to the
//   constructor, since they are numbers of the formula.
// Numerics: W e in f32. It depends on the token id alone: fold() makes it a table for `ple`.
// Cost: two rows and 2 d width FLOPs a token. Source: Gemma 3n, SPEC 2.5.
class ple_memory {
    using word = times<named<token_embedding, "word_embed">>;
    using projected = through<"", word, named<dense, "per_layer_model_projection">>;

public:
    ple_memory(std::size_t d_model, std::size_t width)
        : context_{{}, {{{{}, 1 / std::sqrt(static_cast<double>(d_model))}, {}}}},
          width_root_(std::sqrt(static_cast<double>(width))) {}

    TIFFIN_HD auto parts() const noexcept { return std::tie(context_, rows_); }
    static constexpr double flops() noexcept { return 3; }

    template <class Value>
    TIFFIN_HD Value operator()(const Value& context, const Value& row) const {
        return (context + constant<Value>(width_root_) * row) * constant<Value>(std::sqrt(0.5));
    }

private:
    normed<memory_norm, projected, "per_layer_projection_norm"> context_;
    memory_injection rows_;
    double width_root_;
};

TIFFIN_END
