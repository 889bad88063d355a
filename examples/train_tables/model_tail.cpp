#include "model_tail.hpp"

#include "../decoder/attention.hpp"

#include <tiffin/io/safetensors_writer.hpp>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace {

std::string at_layer(std::size_t i) {
    return "layers." + std::to_string(i) + ".";
}
// The tensors of a block that lie in the model's own place in it. MeKi has a gate of its own, under another branch.
bool is_below(std::string_view name, std::string_view own) {
    if (!name.starts_with(own)) return false;
    name.remove_prefix(own.size());
    return name == "gate_proj.weight" || name == "up_proj.weight" || name == "down_proj.weight";
}
// What learns in a layer: the tensors of its block that are not the model's.
bool learns_in(std::string_view name, std::string_view own) {
    const std::size_t at = name.find(".ffn.");
    return name.starts_with("layers.") && at != name.npos && !is_below(name.substr(at + 5), own);
}

// Rows of heads whose pairs of numbers are neighbours, as rows of heads whose halves are pairs: what is rotated alike.
void halve_heads(float* rows, std::size_t heads, std::size_t head, std::size_t d) {
    std::vector<float> was(head * d);
    for (std::size_t h = 0; h < heads; ++h, rows += head * d) {
        std::copy_n(rows, head * d, was.data());
        for (std::size_t i = 0; i < head; ++i)
            std::copy_n(was.data() + i * d, d, rows + (i / 2 + (i % 2) * (head / 2)) * d);
    }
}

}  // namespace

const std::vector<table_kind>& table_kinds() {
    static const std::vector<table_kind> all{{"retoken", "retoken", "base."},
                                             {"mort", "mort", "base."},
                                             {"meki", "meki_folded", "branch.0."},
                                             {"stem_hybrid", "stem_hybrid", ""}};
    return all;
}

model_tail::model_tail(model_file& file, const tiffin::io::model& ffns, const tail_options& options,
                       tiffin::executor_ref execute)
    : model_tail(parts_of(file, ffns, options), options, execute) {
    read(file, ffns);
}

model_tail::model_tail(const parts& made, const tail_options& options, tiffin::executor_ref execute)
    : kind_(made.kind),
      first_(made.first),
      layers_(made.sizes, options.batch * options.context, {.mort_balance = 1e-4}, execute,
              [own = made.kind.own](std::string_view name) { return learns_in(name, own); }) {
    layers_.initialise(options.seed, 0);
    // Beside the model's own output: a memory's is scaled by its norm, a table in a sum is as it is.
    const tiffin::named_memory<float> all = layers_.numbers().memory();
    for (const auto& t : all.entries())
        if (t.name.ends_with("branch.1.post_norm.weight") || t.name.ends_with("stem_embed.weight"))
            std::fill_n(t.data, t.shape.elements(), 0.0f);
}

model_tail::parts model_tail::parts_of(const model_file& file, const tiffin::io::model& ffns,
                                       const tail_options& options) {
    const auto at = std::find_if(table_kinds().begin(), table_kinds().end(),
                                 [&](const table_kind& k) { return k.name == options.kind; });
    if (at == table_kinds().end()) throw std::invalid_argument("no kind of table is called " + options.kind);
    const attention_options a = attention_options::of(file, 0);
    const std::size_t all = file.count("block_count");
    if (file.kind().name != "llama" || a.rotated != a.head || a.stretch != 1 || a.lengthened != 1 ||
        file.file().tensors().find("rope_freqs.weight") != nullptr)
        file.refuse("is " + std::string(file.kind().name) +
                    "; tables are trained beside models of 'llama' whose positions are not stretched");
    if (a.scale != static_cast<float>(1 / std::sqrt(static_cast<double>(a.head))))
        file.refuse(
            "has attention.scale; tables are trained beside attention with the root of a head's width");
    for (const auto& e : file.file().tensors().entries())
        if (e.name.ends_with(".bias"))
            file.refuse("has " + e.name + "; tables are trained beside models without biases");
    if (a.eps != tiffin::rms{}.eps)
        file.refuse("has norms with " + std::to_string(a.eps) +
                    "; tables are trained beside norms with 1e-5");
    if (options.layers == 0 || options.layers > all)
        throw std::invalid_argument("--layers " + std::to_string(options.layers) + ": the model has " +
                                    std::to_string(all));
    const tiffin::tensor_view* const words = file.file().tensors().find("token_embd.weight");
    if (words == nullptr || words->shape.rank() != 2) file.refuse("tensor token_embd.weight is missing");
    parts made{*at, all - options.layers, {}};
    const tiffin::io::described_layer block = ffns.layer(made.first).or_throw();
    const tiffin::tensor_view* const gate = block.tensors.find("gate_proj.weight");
    made.sizes.ffn = {.d_model = a.d_model,
                      .d_ff = gate != nullptr ? gate->shape[0] : 1,  // read() refuses what has none
                      .vocabulary = words->shape[0],
                      .layers = all,
                      .experts = options.experts,
                      .d_mem = options.d_mem};
    made.sizes.attention = {a.heads, a.kv_heads, a.head};
    made.sizes.context = options.context;
    made.sizes.rope_base = a.base;
    made.sizes.kinds.assign(options.layers, std::string(at->block));
    return made;
}

void model_tail::read(model_file& file, const tiffin::io::model& ffns) {
    const tiffin::named_memory<float> all = layers_.numbers().memory();
    const model_sizes& sizes = layers_.sizes();
    const attention_sizes& a = sizes.attention;
    const std::size_t d = sizes.ffn.d_model, narrow = a.kv_heads * a.head;
    const auto put = [&](const tiffin::tensor_view& from, float* to) {
        tiffin::read_as_f32(from, 0, from.shape.elements(), to);
    };
    const auto fill = [&](const std::string& ours, const std::string& theirs, const tiffin::shape& shape) {
        put(*file.tensor(theirs, shape), all.find(ours)->data);
    };
    const bool tied = file.file().tensors().find("output.weight") == nullptr;
    fill("embedding.weight", tied ? "token_embd.weight" : "output.weight", {sizes.ffn.vocabulary, d});
    fill("head.norm.weight", "output_norm.weight", {d});
    for (std::size_t i = 0; i < sizes.kinds.size(); ++i) {
        const std::string ours = at_layer(i), theirs = "blk." + std::to_string(first_ + i) + ".";
        fill(ours + "attention_in.norm.weight", theirs + "attn_norm.weight", {d});
        fill(ours + "ffn_in.norm.weight", theirs + "ffn_norm.weight", {d});
        fill(ours + "attention_out.output.weight", theirs + "attn_output.weight", {d, a.queries()});
        float* const qkv = all.find(ours + "attention_in.qkv.weight")->data;
        put(*file.tensor(theirs + "attn_q.weight", {a.queries(), d}), qkv);
        put(*file.tensor(theirs + "attn_k.weight", {narrow, d}), qkv + a.queries() * d);
        put(*file.tensor(theirs + "attn_v.weight", {narrow, d}), qkv + (a.queries() + narrow) * d);
        if (file.kind().rotates_neighbours) halve_heads(qkv, a.heads + a.kv_heads, a.head, d);

        const tiffin::io::described_layer own = ffns.layer(first_ + i).or_throw();
        const std::map<std::string, std::string> swiglu{{"block", "glu"}, {"activation", "silu"}};
        if (own.options != swiglu || own.tensors.entries().size() != 3)
            file.refuse("has another block than SwiGLU without biases in layer " +
                        std::to_string(first_ + i));
        for (const auto& e : own.tensors.entries()) {
            const auto* const to = all.find(ours + "ffn." + std::string(kind_.own) + e.name);
            if (to == nullptr || !(to->shape == e.tensor.shape))
                file.refuse(e.name + " of layer " + std::to_string(first_ + i) + " has shape " +
                            to_string(e.tensor.shape));
            put(e.tensor, to->data);
        }
    }
}

std::size_t model_tail::learning() const {
    std::size_t n = 0;
    for (const parameters::tensor& t : layers_.numbers().all())
        if (learns_in(t.name, kind_.own)) n += t.shape.elements();
    return n;
}

double model_tail::added_flops() const {
    const model_sizes& sizes = layers_.sizes();
    return static_cast<double>(sizes.kinds.size()) *
           (ffn_kind_of(sizes.kinds[0]).flops(sizes.ffn) - ffn_kind_of("swiglu").flops(sizes.ffn));
}

void model_tail::write(const std::filesystem::path& path) const {
    const model_sizes& sizes = layers_.sizes();
    tiffin::io::safetensors_writer file;
    for (std::size_t i = 0; i < sizes.kinds.size(); ++i) {
        const std::string there = "blk." + std::to_string(first_ + i) + ".";
        file.set(there + "composition", ffn_kind_of(sizes.kinds[i]).composed(sizes.ffn).text());
        file.set(there + std::string(kind_.own) + "weights", "model");
        const tiffin::weights block = layers_.numbers().behind(at_layer(i) + "ffn.");
        for (const auto& e : block.entries())
            if (!is_below(e.name, kind_.own)) file.add(there + e.name, e.tensor);
    }
    file.write(path).or_throw();
}
