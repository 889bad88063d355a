// The blocks of layer files that read rows chosen by keys or by ranges: product_keys, peer and l3.
#pragma once

#include <tiffin/io/layer_options.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/runtime/any_block.hpp>
#include <tiffin/tensor.hpp>

#include <tuple>

TIFFIN_BEGIN
namespace io {
namespace detail {

inline status read_top_k(layer_options& options, const block_place& at, product_keys& router) {
    if (!options.has(at.keys + "top_k"))
        return failure(errc::option, at.keys + "top_k",
                       "missing from __metadata__; it counts the rows that a head reads and has no default");
    return options.read(at.keys + "top_k", router.top_k);
}

// Memory+ where `gate_proj.weight` is there, else the rows alone.
template <class Backend>
result<any_block<Backend>> product_keys_block(layer_options& options, const weights& given,
                                              const block_place& at) {
    product_key_memory memory;
    if (status s = read_top_k(options, at, memory.router); !s) return s.failure();
    if (given.find(at.tensors + "gate_proj.weight") == nullptr) return any_block<Backend>(memory);
    any_activation phi{activation_kind::silu};
    if (status s = options.read(at.keys + "activation", phi); !s) return s.failure();
    ffn<gate<any_activation>, product_key_memory> made;
    made.hidden.gate.phi = phi;
    made.hidden.up = memory;
    return any_block<Backend>(made);
}

template <class Backend>
result<any_block<Backend>> peer_block(layer_options& options, const weights&, const block_place& at) {
    using rows = gated_rows<product_keys, row_activation<any_activation>, "down_embed.weight">;
    routed_embedding<rows, chosen_rows<"up_embed.weight">> made;
    any_activation& phi = made.router.gate_of_rows.phi;
    phi.kind = activation_kind::gelu;
    if (status s = read_top_k(options, at, made.router); !s) return s.failure();
    if (status s = options.read(at.keys + "activation", phi); !s) return s.failure();
    return any_block<Backend>(made);
}

template <class Backend>
result<any_block<Backend>> l3_block(layer_options& options, const weights&, const block_place& at) {
    l3 made;
    auto& memory = std::get<1>(made.terms);
    if (status s = options.read(at.keys + "eps", std::get<1>(memory.steps).norm.eps); !s) return s.failure();
    return any_block<Backend>(made);
}

}  // namespace detail
}  // namespace io
TIFFIN_END
