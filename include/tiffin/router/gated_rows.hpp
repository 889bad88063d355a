// Table rows chosen by one router and reweighted by the dot products of their keys with the input.
#pragma once

#include <tiffin/activation/gelu.hpp>
#include <tiffin/fixed_string.hpp>
#include <tiffin/router/softmax.hpp>

#include <cstddef>

TIFFIN_BEGIN

// The choices of Router with new weights w <- Gate(z, w), z_i = <x, K_i>, K_i the key of row i, per token.
// Shapes: x (T, input), Keys (rows, input), by default `row_keys.weight`; Router's tensors.
// Numerics: z in f32, in an unspecified order of additions; the gate in double.
// Cost: one row of `input` values and 2 input FLOPs per choice.
// Source: PEER (arXiv 2407.04153), large lookup layers; docs/layers.md#product-keys, #l3.
template <row_router Router, class Gate, fixed_string Keys = "row_keys.weight">
struct gated_rows : Router {
    using tensors = joined_tensors<typename Router::tensors, tensor_list<row_keys<Keys>>>;
    Gate gate_of_rows{};

    constexpr gated_rows() noexcept = default;
    constexpr gated_rows(const Router& router, const Gate& gate = {}) noexcept
        : Router(router), gate_of_rows(gate) {}

    template <class S>
    TIFFIN_HD void gate(const S* products, S* weights, std::size_t n) const {
        gate_of_rows(products, weights, n);
    }
};

// w_i <- w_i phi(z_i): each row is an expert of one neuron.
template <class Activation = gelu>
struct row_activation {
    Activation phi{};

    template <class S>
    TIFFIN_HD void operator()(const S* products, S* weights, std::size_t n) const {
        for (std::size_t i = 0; i < n; ++i) weights[i] = weights[i] * S(phi(products[i]));
    }
};

// w <- softmax(z): attention over the rows.
struct row_softmax {
    template <class S>
    TIFFIN_HD void operator()(const S* products, S* weights, std::size_t n) const {
        if (n > 0) detail::softmax(products, weights, n);
    }
};

TIFFIN_END
