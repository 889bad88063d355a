#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/source/dense.hpp>

#include <concepts>
#include <tuple>

TIFFIN_BEGIN

// An activation over a source: g = phi(z).
// Shapes: z, g (T, width). Numerics, cost: those of the activation and the source.
// Source: docs/layers.md#sources; with a token embedding as source, STEM Table 3.
template <class Activation, class Source = dense>
struct gate {
    static_assert(activation_policy<Activation>,
                  "tiffin: gate<Activation, Source>: the first argument is not an activation; an "
                  "activation has a const operator()(z) that maps a number to a number, and a "
                  "const flops(), as silu has. Write gate<silu> or gate<silu, token_embedding>");
    static_assert(source_policy<Source>,
                  "tiffin: gate<Activation, Source>: the second argument is not a source; a source "
                  "has a `tensors` list and a formula operator()(at), as dense has, or parts()");

    using formula_is = policy_of_values<gate>;

    Activation phi{};
    Source input{};

    TIFFIN_HD constexpr std::tuple<const Source&> parts() const noexcept { return {input}; }
    [[nodiscard]] constexpr const Activation& formula() const noexcept { return phi; }
    [[nodiscard]] constexpr double flops() const noexcept { return phi.flops(); }

    template <class Value>
    TIFFIN_HD Value
    operator()(const Value& z) const requires std::invocable<const Activation&, const Value&> {
        return static_cast<Value>(phi(z));
    }
};

TIFFIN_END
