// The relatives among the blocks of layer files: deep_embed and mole in whatever form their tensors have, engram,
// longcat_embedding.
#pragma once

#include <tiffin/io/layer_options.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/runtime/any_block.hpp>
#include <tiffin/tensor.hpp>

#include <tuple>

TIFFIN_BEGIN
namespace io {
namespace detail {

using file_mlp = ffn<gate<any_activation>, none>;

// With a matrix per token where `in_proj.weight` is there, as an up source where `gate_proj.weight` is, else
// multiplied with the result.
template <class Backend>
result<any_block<Backend>> deep_embed_block(layer_options& options, const weights& given,
                                            const block_place& at) {
    any_activation phi{activation_kind::relu_squared};
    if (status s = options.read(at.keys + "activation", phi); !s) return s.failure();
    const auto has = [&](const char* name) { return given.find(at.tensors + name) != nullptr; };
    const auto with_up = [&](auto made) {
        made.hidden.gate.phi = phi;
        return any_block<Backend>(made);
    };
    if (has("in_proj.weight")) return with_up(ffn<gate<any_activation>, on_residual<deep_embed_matrix>>{});
    if (has("gate_proj.weight")) return with_up(ffn<gate<any_activation>, deep_embed>{});
    fused<file_mlp, deep_embed, multiply> made;
    made.gate.hidden.phi = phi;
    return any_block<Backend>(made);
}

// Folded where `lookup.weight` is there, else with its experts.
template <class Backend>
result<any_block<Backend>> mole_block(layer_options& options, const weights& given, const block_place& at) {
    any_activation phi{activation_kind::gelu};
    if (status s = options.read(at.keys + "activation", phi); !s) return s.failure();
    file_mlp shared;
    shared.hidden.phi = phi;
    if (given.find(at.tensors + "lookup.weight") != nullptr)
        return any_block<Backend>(sum<file_mlp, lookup_experts>{{shared, {}}});
    sum<file_mlp, mixture<softmax_all, through<"", per_layer_input, file_mlp>>> made;
    auto& [base, experts] = made.terms;
    base = std::get<1>(experts.expert.steps) = shared;
    return any_block<Backend>(made);
}

template <class Backend>
result<any_block<Backend>> engram_block(layer_options& options, const weights&, const block_place& at) {
    engram made;
    float eps = made.left.norm.eps;
    if (status s = options.read(at.keys + "eps", eps); !s) return s.failure();
    made.left.norm.eps = made.right.norm.eps = eps;
    return any_block<Backend>(made);
}

template <class Backend>
result<any_block<Backend>> longcat_block(layer_options& options, const weights&, const block_place& at) {
    longcat_embedding made;
    if (!options.has(at.keys + "terms"))
        return failure(errc::option, at.keys + "terms",
                       "missing from __metadata__; it counts the rows that are averaged and has no default");
    if (status s = options.read(at.keys + "terms", made.terms); !s) return s.failure();
    return any_block<Backend>(made);
}

}  // namespace detail
}  // namespace io
TIFFIN_END
