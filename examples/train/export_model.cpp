#include "export_model.hpp"

#include "../support/output.hpp"

#include <tiffin/io/safetensors_writer.hpp>

#include <nlohmann/json.hpp>

#include <string>
#include <utility>

namespace {

using tiffin::io::safetensors_writer;

// A layer's tensors as Llama has them; queries, keys and values lie below one another here.
void add_layer(const language_model& model, std::size_t i, const std::string& kind, safetensors_writer& to) {
    const std::string here = "layers." + std::to_string(i) + ".", there = "model." + here;
    const tiffin::weights all = model.numbers().behind(here);
    const model_sizes& sizes = model.sizes();
    const auto add = [&](const std::string& ours, const std::string& theirs) {
        to.add(there + theirs, *all.find(ours));
    };
    const auto add_norm = [&](const char* ours, const std::string& theirs) {
        add(std::string(ours) + ".weight", theirs + ".weight");
        if (sizes.layer_norm) add(std::string(ours) + ".bias", theirs + ".bias");
    };
    add_norm("attention_in.norm", "input_layernorm");
    add("attention_out.output.weight", "self_attn.o_proj.weight");
    const auto* qkv = static_cast<const float*>(all.find("attention_in.qkv.weight")->data);
    const std::size_t d = sizes.ffn.d_model, narrow = sizes.attention.kv_heads * sizes.attention.head;
    for (const auto& [name, rows] : {std::pair<const char*, std::size_t>{"q", sizes.attention.queries()},
                                     {"k", narrow},
                                     {"v", narrow}}) {
        to.add(there + "self_attn." + name + "_proj.weight", {qkv, tiffin::dtype::f32, {rows, d}});
        qkv += rows * d;
    }
    if (kind == "none") return;
    add_norm("ffn_in.norm", "post_attention_layernorm");
    const std::string owner = kind == "swiglu" ? "mlp." : "ffn.";
    const tiffin::weights ffn = model.numbers().behind(here + "ffn.");
    for (const auto& e : ffn.entries()) to.add(there + owner + e.name, e.tensor);
}

}  // namespace

void export_model(const language_model& model, const std::filesystem::path& folder) {
    const model_sizes& sizes = model.sizes();
    const tiffin::weights all = model.numbers().behind("");
    safetensors_writer whole;
    whole.add("model.embed_tokens.weight", *all.find("embedding.weight"));
    whole.add("model.norm.weight", *all.find("head.norm.weight"));
    if (sizes.layer_norm) whole.add("model.norm.bias", *all.find("head.norm.bias"));
    if (sizes.untied_head) whole.add("lm_head.weight", *all.find("head.vocabulary.weight"));
    bool is_llama = !sizes.layer_norm;
    for (std::size_t i = 0; i < sizes.kinds.size(); ++i) {
        const std::string& name = sizes.kinds[i];
        is_llama = is_llama && name == "swiglu";
        add_layer(model, i, name, whole);
        if (name == "none") continue;
        const ffn_kind& kind = ffn_kind_of(name);
        safetensors_writer layer;
        if (kind.delay(sizes.ffn) != 0) continue;  // a layer file has no other layers
        for (const auto& [key, value] : kind.file_options(sizes.ffn)) layer.set(key, value);
        for (const auto& [tensor, t] : kind.tensors(sizes.ffn)) {
            const bool embedding = kind.reads_embedding && tensor.ends_with("word_embed.weight");
            layer.add(tensor, *all.find(embedding ? "embedding.weight"
                                                  : "layers." + std::to_string(i) + ".ffn." + tensor));
        }
        layer.write(folder / ("layer." + std::to_string(i) + ".safetensors")).or_throw();
    }
    whole.write(folder / "model.safetensors").or_throw();
    const nlohmann::json config{{"model_type", is_llama ? "llama" : "tiffin_example"},
                                {"hidden_act", "silu"},
                                {"hidden_size", sizes.ffn.d_model},
                                {"intermediate_size", sizes.ffn.d_ff},
                                {"num_hidden_layers", sizes.kinds.size()},
                                {"num_attention_heads", sizes.attention.heads},
                                {"num_key_value_heads", sizes.attention.kv_heads},
                                {"max_position_embeddings", sizes.context},
                                {"rms_norm_eps", 1e-5},
                                {"rope_theta", 10000.0},
                                {"tie_word_embeddings", !sizes.untied_head},
                                {"vocab_size", sizes.ffn.vocabulary}};
    write_text(folder / "config.json", config.dump(2) + "\n");
}
