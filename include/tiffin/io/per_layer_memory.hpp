// The per-layer embeddings of a Gemma model (PLE): where a layer's rows lie, and its tensors.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/checkpoint_parts.hpp>
#include <tiffin/io/gguf_model.hpp>
#include <tiffin/io/gguf_tensors.hpp>
#include <tiffin/quoted.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// PLE of one layer of Gemma 3n and Gemma 4: a composition for compose(), which is `ple_full` of the scaled word embedding.
// Its table is given with each call: the layer's columns of the token-major table.
//
//     const auto found = find_per_layer_memory("model.gguf", 3).or_throw();
//     auto block = compose<simd<>::machine>(found.composition, all_policies).or_throw();
//     auto layer = prepare(block, found.tensors, simd<f32, any_format>{{}, kept_as_given});
//     auto table = mapped_file::open(found.table).or_throw();   // a row per token id
struct per_layer_memory {
    std::size_t layers = 0;
    std::string composition;
    table_location table;              // (V, width), `memory.weight`
    weights tensors;                   // `memory.weight` is gathered
    std::shared_ptr<const void> keep;  // what they are views of
};

namespace detail {

// Its tensors' names: those of one layer, after the layer's prefix, and those of the model.
struct per_layer_names {
    std::string layer;
    const char *gate, *out, *norm;
    std::string projection, projection_norm, words, table;
};

// `from`: gguf_tensors or checkpoint_parts.
template <class Source>
result<per_layer_memory> find_per_layer_memory(Source& from, const per_layer_names& names, std::size_t index,
                                               std::size_t layers, std::size_t width, float eps,
                                               const table_location& table) {
    per_layer_memory made;
    made.layers = layers;
    if (index >= layers)
        return failure(errc::option, from.label(), "there is no layer ", index, "; the model has ", layers);
    const std::array<std::pair<std::string, const char*>, 6> tensors{
        {{names.layer + names.gate, "gate_proj.weight"},
         {names.layer + names.out, "out_proj.weight"},
         {names.layer + names.norm, "post_norm.weight"},
         {names.projection_norm, "per_layer_projection_norm.weight"},
         {names.words, "word_embed.weight"},
         {names.projection, "per_layer_model_projection.weight"}}};
    for (const auto& [theirs, ours] : tensors) {
        auto found = from.find(theirs);
        if (!found) return found.failure();
        tensor_view t = *found;
        if (theirs == names.projection) {
            if (t.shape.rank() != 2 || t.shape[0] != layers * width)
                return failure(errc::shape, theirs, "has shape ", to_string(t.shape), "; ", layers,
                               " layers of ", width, " have ", layers * width, " rows");
            if (t.scales.any() && t.scales.rows != tensor_scales::all && width % t.scales.rows != 0)
                return failure(errc::shape, theirs, "has ", t.scales.text(), ", which two layers of ", width,
                               " rows share");
            t = t.rows_from(index * width, {width, t.shape[1]});
        }
        made.tensors.add(ours, t);
    }
    if (table.shape.width != layers * width)
        return failure(errc::shape, names.table, "has rows of ", table.shape.width, "; ", layers,
                       " layers of ", width, " are ", layers * width);
    auto columns = table.columns(index * width, width);
    if (!columns) return columns.failure();
    made.table = *std::move(columns);
    made.tensors.add_gathered("memory.weight", made.table.shape.type, {made.table.shape.rows, width});
    std::array<char, 32> text{};
    const std::string e(text.data(), std::to_chars(text.data(), text.data() + text.size(), eps).ptr);
    made.composition =
        "ffn(gate(gelu_tanh), times_roots(sum(normed(memory_norm(eps=" + e +
        "), through('', named(token_embedding, 'word_embed'), named(dense, 'per_layer_model_projection')), "
        "'per_layer_projection_norm'), times_roots(memory_injection, width=1)), two=-1), multiply, "
        "memory_output(eps=" +
        e + "))";
    if (status s = from.check_rest(); !s) return s.failure();
    return {std::move(made)};
}

inline result<per_layer_memory> find_per_layer_memory(gguf_tensors& from, std::size_t index) {
    if (from.architecture() != "gemma3n" && from.architecture() != "gemma4")
        return failure(errc::option, from.label(), "general.architecture is ",
                       tiffin::detail::in_quotes(from.architecture()),
                       "; known with per-layer embeddings are 'gemma3n' and 'gemma4'");
    const auto layers = from.number("block_count"),
               width = from.number("embedding_length_per_layer_input", 0);
    const auto eps = from.fraction("attention.layer_norm_rms_epsilon");
    if (!layers) return layers.failure();
    if (!width) return width.failure();
    if (!eps) return eps.failure();
    if (*width == 0)
        return failure(errc::option, from.key("embedding_length_per_layer_input"),
                       "is 0: the model has none");
    const per_layer_names names{"blk." + std::to_string(index) + ".",
                                "inp_gate.weight",
                                "proj.weight",
                                "post_norm.weight",
                                "per_layer_model_proj.weight",
                                "per_layer_proj_norm.weight",
                                "token_embd.weight",
                                "per_layer_token_embd.weight"};
    from.own("per_layer_");
    const auto table = from.table(names.table);
    if (!table) return table.failure();
    return find_per_layer_memory(from, names, index, *layers, *width, *eps, *table);
}

inline result<per_layer_memory> find_per_layer_memory(checkpoint_parts& from, std::size_t index) {
    const std::string& type = from.type();
    if (!type.starts_with("gemma3n") && !type.starts_with("gemma4"))
        return failure(errc::option, from.label(), "model_type of config.json is ",
                       tiffin::detail::in_quotes(type),
                       "; known with per-layer embeddings are 'gemma3n' and 'gemma4'");
    if (from.tells("hidden_activation") && !from.is("hidden_activation", "gelu_pytorch_tanh"))
        return from.wrong("hidden_activation", "is not 'gelu_pytorch_tanh'");
    const auto layers = from.number("num_hidden_layers"),
               width = from.number("hidden_size_per_layer_input", 0);
    const auto eps = from.fraction("rms_norm_eps", 1e-6f);
    if (!layers) return layers.failure();
    if (!width) return width.failure();
    if (!eps) return eps.failure();
    if (*width == 0) return from.wrong("hidden_size_per_layer_input", "is 0: the model has none");
    const std::string root = from.root_of("embed_tokens_per_layer.");
    const per_layer_names names{root + "layers." + std::to_string(index) + ".",
                                "per_layer_input_gate.weight",
                                "per_layer_projection.weight",
                                "post_per_layer_input_norm.weight",
                                root + "per_layer_model_projection.weight",
                                root + "per_layer_projection_norm.weight",
                                root + "embed_tokens.weight",
                                root + "embed_tokens_per_layer.weight"};
    from.own(root + "per_layer_");
    from.own(names.layer + "per_layer_");
    const auto table = from.table(root + "embed_tokens_per_layer");
    if (!table) return table.failure();
    if (table->shards.size() != 1 || table->scale || !table->scales.empty())
        return failure(errc::dtype, names.table,
                       "has shards or scales, which the columns of one layer do not");
    return find_per_layer_memory(from, names, index, *layers, *width, *eps, table->shards[0]);
}

}  // namespace detail

// Finds it in the files of a GGUF model, which must outlive the tensors. Precondition: there is a file.
// Errors: errc::option for another architecture, a missing key, or a layer that is not there; errc::missing_tensor,
//   unused_tensor, dtype, shape, size (blocks of the table's format that two layers share), with names and numbers.
// Source: llama.cpp and Transformers, gemma3n and gemma4: p = (rms(W e / sqrt(d)) + sqrt(width) P[t]) / sqrt(2), e = sqrt(d) E[t].
inline result<per_layer_memory> find_per_layer_memory(const std::vector<gguf_file>& files,
                                                      std::size_t layer) {
    detail::gguf_tensors from(files);
    return detail::find_per_layer_memory(from, layer);
}

// Finds it in a model: a GGUF file, the first of a split model, or the folder of a checkpoint, or its config.json. What is
// found keeps the files open.
// Errors: as above, and those of opening the files. Cost: that of the headers.
inline result<per_layer_memory> find_per_layer_memory(const std::filesystem::path& path, std::size_t layer) {
    const auto kept = [](const auto& files, result<per_layer_memory> found) {
        if (found) found->keep = files;
        return found;
    };
    if (detail::is_checkpoint(path)) {
        auto parts = detail::checkpoint_parts::open(path);
        if (!parts) return parts.failure();
        return kept(*parts, detail::find_per_layer_memory(**parts, layer));
    }
    auto opened = open_gguf_files(path);
    if (!opened) return opened.failure();
    const auto files = std::make_shared<const std::vector<gguf_file>>(*std::move(opened));
    return kept(files, find_per_layer_memory(*files, layer));
}

}  // namespace io
TIFFIN_END
