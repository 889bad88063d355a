// The per-layer embeddings of a Gemma model (PLE): where a layer's rows lie, and its tensors.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/gguf_tensors.hpp>
#include <tiffin/quoted.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// PLE of one layer of Gemma 3n and Gemma 4: a composition for compose(), which is `ple_full` of the scaled word embedding.
// Its table is given with each call: the layer's columns of the token-major table.
//
//     const auto found = find_per_layer_memory(files, 3).or_throw();
//     auto block = compose<simd<>::machine>(found.composition, all_policies).or_throw();
//     auto layer = prepare(block, found.tensors, simd<f32, any_format>{{}, kept_as_given});
//     auto table = mapped_file::open(found.table).or_throw();   // a row per token id
struct per_layer_memory {
    std::size_t layers = 0;
    std::string composition;
    table_location table;  // (V, width), `memory.weight`
    weights tensors;       // views of the files; `memory.weight` is gathered
};

// Precondition: there is a file, and the files must outlive the tensors.
// Errors: errc::option for another architecture, a missing key, or a layer that is not there; errc::missing_tensor,
//   unused_tensor, dtype, shape, size (blocks of the table's format that two layers share), with names and numbers.
// Source: llama.cpp, gemma3n and gemma4: p = (rms(W e / sqrt(d)) + sqrt(width) P[t]) / sqrt(2), e = sqrt(d) E[t].
inline result<per_layer_memory> find_per_layer_memory(const std::vector<gguf_file>& files,
                                                      std::size_t layer) {
    const detail::gguf_tensors from(files);
    if (from.architecture() != "gemma3n" && from.architecture() != "gemma4")
        return failure(errc::option, from.label(), "general.architecture is ",
                       tiffin::detail::in_quotes(from.architecture()),
                       "; known with per-layer embeddings are 'gemma3n' and 'gemma4'");
    per_layer_memory made;
    const auto layers = from.number("block_count"),
               width = from.number("embedding_length_per_layer_input", 0);
    const auto eps = from.fraction("attention.layer_norm_rms_epsilon");
    if (!layers) return layers.failure();
    if (!width) return width.failure();
    if (!eps) return eps.failure();
    made.layers = *layers;
    if (*width == 0)
        return failure(errc::option, from.key("embedding_length_per_layer_input"),
                       "is 0: the model has none");
    if (layer >= *layers)
        return failure(errc::option, from.label(), "there is no layer ", layer, "; the model has ", *layers);
    const std::string at = "blk." + std::to_string(layer) + ".";
    const std::array<std::pair<std::string, const char*>, 6> names{
        {{at + "inp_gate.weight", "gate_proj.weight"},
         {at + "proj.weight", "out_proj.weight"},
         {at + "post_norm.weight", "post_norm.weight"},
         {"per_layer_proj_norm.weight", "per_layer_projection_norm.weight"},
         {"token_embd.weight", "word_embed.weight"},
         {"per_layer_model_proj.weight", "per_layer_model_projection.weight"}}};
    for (const auto& [theirs, ours] : names) {
        const auto found = from.find(theirs);
        if (!found) return found.failure();
        tensor_view t = found->tensor;
        if (theirs == "per_layer_model_proj.weight") {
            if (t.shape.rank() != 2 || t.shape[0] != *layers * *width)
                return failure(errc::shape, theirs, "has shape ", to_string(t.shape), "; ", *layers,
                               " layers of ", *width, " have ", *layers * *width, " rows");
            t = t.rows_from(layer * *width, {*width, t.shape[1]});
        }
        made.tensors.add(ours, t);
    }
    const auto table = from.table("per_layer_token_embd.weight");
    if (!table) return table.failure();
    if (table->shape.width != *layers * *width)
        return failure(errc::shape, "per_layer_token_embd.weight", "has rows of ", table->shape.width, "; ",
                       *layers, " layers of ", *width, " are ", *layers * *width);
    auto columns = table->columns(layer * *width, *width);
    if (!columns) return columns.failure();
    made.table = *std::move(columns);
    made.tensors.add_gathered("memory.weight", made.table.shape.type, {made.table.shape.rows, *width});
    std::array<char, 32> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), *eps).ptr;
    const std::string e(text.data(), end);
    made.composition =
        "ffn(gate(gelu_tanh), times_roots(sum(normed(memory_norm(eps=" + e +
        "), through('', named(token_embedding, 'word_embed'), named(dense, 'per_layer_model_projection')), "
        "'per_layer_projection_norm'), times_roots(memory_injection, width=1)), two=-1), multiply, "
        "memory_output(eps=" +
        e + "))";
    return made;
}

}  // namespace io
TIFFIN_END
