// Maps the FFN of a checkpoint's layer to a block, and its published tensor names to tiffin's.
#pragma once

#include <tiffin/io/checkpoint_config.hpp>
#include <tiffin/io/checkpoint_tensors.hpp>
#include <tiffin/io/described_layer.hpp>
#include <tiffin/io/quantised_parts.hpp>
#include <tiffin/io/weight_scales.hpp>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

// Reads the FFN of one layer from the tensors of all files. A tensor of it that is not used is an error.
class checkpoint_layer_reader {
public:
    checkpoint_layer_reader(const checkpoint_tensors::tensors_by_name& tensors,
                            const checkpoint_config& config, std::size_t index)
        : tensors_(tensors), config_(config), index_(index) {}

    result<described_layer> read() {
        const std::string number = std::to_string(index_) + ".";
        for (const std::string_view root :
             {"model.layers.", "model.language_model.layers.", "language_model.model.layers.", "layers.",
              "lm_transformer.layers."}) {
            const std::string at = std::string(root) + number;
            if (has(at + "meki_module.")) return finished(meki_layer(at), at + "meki_module.");
            if (has(at + "mlp.") && has(at + "router.")) return experts_beside(at + "router");
            if (has(at + "mlp.")) return finished(decoder_layer(at + "mlp."), at + "mlp.");
            if (has(at + "block_sparse_moe."))
                return finished(mixtral_layer(at + "block_sparse_moe."), at + "block_sparse_moe.");
            if (has(at + "feed_forward."))
                return finished(lingua_layer(std::string(root)), at + "feed_forward.");
        }
        for (const std::string_view root : {"encoder.layer.", "bert.encoder.layer."}) {
            const std::string at = std::string(root) + number;
            if (has(at + "intermediate.dense.")) return finished(encoder_layer(at), at + "intermediate.");
        }
        return failure(
            errc::missing_tensor, "layers." + number + "mlp",
            "missing; known are the names of Llama, Qwen, Gemma, Phi 3, Mixtral, BERT, Lingua and MeKi");
    }

private:
    [[nodiscard]] bool is_there(const std::string& name) const { return tensors_.contains(name); }
    // Whether a tensor's name begins with `prefix`.
    [[nodiscard]] bool has(const std::string& prefix) const {
        const auto at = tensors_.lower_bound(prefix);
        return at != tensors_.end() && at->first.starts_with(prefix);
    }
    // Checks that all tensors whose names begin with `prefix` have been used; fails for the first that has not.
    [[nodiscard]] status check_rest(const std::string& prefix) const {
        for (auto at = tensors_.lower_bound(prefix); at != tensors_.end() && at->first.starts_with(prefix);
             ++at) {
            if (used_.contains(at->first)) continue;
            if (!at->second.wrong && at->second.wrong.failure().code != errc::dtype) return at->second.wrong;
            return unused_failure(at->first, "the FFN of '" + config_.type + "'");
        }
        return {};
    }
    static std::string stem_of(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }

    // Finds a tensor, with the scales of its codes, and marks both as used.
    result<tensor_view> use(const std::string& name) {
        const auto at = tensors_.find(name);
        if (at == tensors_.end()) {
            // A weight quantised by another tool has tensors of other names.
            if (status s = check_rest(stem_of(name));
                !s && s.failure().code == errc::unused_tensor && !quantised_part(s.failure().where).empty())
                return s.failure();
            return failure(errc::missing_tensor, name, "missing; the FFN of '", config_.type, "' reads it");
        }
        used_.insert(name);
        if (at->second.wrong) return with_scales(name, *at->second.tensor);
        failure why = at->second.wrong.failure();
        if (status s = check_rest(stem_of(name)); why.code == errc::dtype && !s)
            why.what += "; " + s.failure().message();
        return why;
    }
    // Scales beside values that are no codes would be of something that is not known: they remain unused.
    result<tensor_view> with_scales(const std::string& name, tensor_view weight) {
        if (!is_f8(weight.type) || !name.ends_with(".weight")) return weight;
        for (const std::string_view end : scale_names) {
            const auto scales = tensors_.find(stem_of(name) + std::string(end));
            if (scales == tensors_.end()) continue;
            if (weight.scales.any()) break;  // of several, the others are unused
            if (!scales->second.wrong) return scales->second.wrong.failure();
            if (status s = add_scales(weight, *scales->second.tensor, scales->first); !s) return s.failure();
            used_.insert(scales->first);
        }
        return weight;
    }
    status take(const std::string& name, const std::string& as, bool optional = false) {
        if (optional && !is_there(name)) return {};
        const auto tensor = use(name);
        if (!tensor) return tensor.failure();
        made_.tensors.add(as, *tensor);
        return {};
    }
    // Takes the first of these that is present; where none is, the failure names the first.
    status take_one_of(std::initializer_list<std::string> names, const std::string& as) {
        for (const std::string& name : names)
            if (is_there(name)) return take(name, as);
        return take(*names.begin(), as);
    }
    // Takes a weight and, where present, its bias.
    status take_linear(const std::string& name, const std::string& as) {
        if (status s = take(name + ".weight", as + ".weight"); !s) return s;
        return take(name + ".bias", as + ".bias", true);
    }
    // Takes projections: names with prefix `at`, added under names with prefix `to`.
    status take_all(const std::string& at, const std::string& to,
                    std::initializer_list<std::pair<const char*, const char*>> names) {
        for (const auto& [theirs, ours] : names)
            if (status s = take_linear(at + theirs, to + ours); !s) return s;
        return {};
    }
    // The layer, once all tensors under `prefix`, and all that share a stem with one in use, have been used.
    result<described_layer> finished(const status& s, const std::string& prefix) {
        if (!s) return s.failure();
        if (status left = check_rest(prefix); !left) return left.failure();
        for (const std::string& name : used_)
            if (status left = check_rest(stem_of(name)); !left) return left.failure();
        return std::move(made_);
    }

    status decoder_layer(const std::string& at) {
        if (is_there(at + "gate.weight")) return qwen_mixture(at);
        made_.options = gated_options(config_.activation, config_.gate_threshold(index_));
        if (status s = take_linear(at + "down_proj", "down_proj"); !s) return s;
        const std::string both = at + "gate_up_proj.weight";
        if (!is_there(both)) return take_all(at, "", {{"gate_proj", "gate_proj"}, {"up_proj", "up_proj"}});
        const auto rows = use(both);
        if (!rows) return rows.failure();
        return add_gate_and_up(made_.tensors, *rows, both);
    }
    status qwen_mixture(const std::string& at) {
        const bool renormalised = config_.renormalised;
        if (status s = begin_mixture(at, renormalised ? "softmax_topk_renorm" : "softmax_topk"); !s) return s;
        return take_experts(at,
                            {{"gate_proj", "gate_proj"}, {"up_proj", "up_proj"}, {"down_proj", "down_proj"}});
    }
    status mixtral_layer(const std::string& at) {
        if (status s = begin_mixture(at, "softmax_topk_renorm"); !s) return s;
        return take_experts(at, {{"w1", "gate_proj"}, {"w3", "up_proj"}, {"w2", "down_proj"}});
    }
    status take_experts(const std::string& at,
                        std::initializer_list<std::pair<const char*, const char*>> names) {
        for (std::size_t e = 0; e < config_.experts; ++e) {
            const std::string expert = "experts." + std::to_string(e) + ".";
            if (status s = take_all(at + expert, expert, names); !s) return s;
        }
        return {};
    }
    status begin_mixture(const std::string& at, const char* order) {
        if (!config_.routing) return config_.routing;
        made_.options = {{"block", "moe"},
                         {"router_order", order},
                         {"top_k", std::to_string(config_.top_k)},
                         {"num_experts", std::to_string(config_.experts)},
                         {"expert.block", "glu"},
                         {"expert.activation", config_.activation}};
        return take(at + "gate.weight", "router.weight");
    }
    status encoder_layer(const std::string& at) {
        made_.options = {{"block", "mlp"}, {"activation", config_.activation}};
        return take_all(at, "", {{"intermediate.dense", "up_proj"}, {"output.dense", "down_proj"}});
    }

    // Meta Lingua's names, and STEM's extension of them: the i-th layer without w3, from 0 on, reads the i-th table.
    // Source: https://github.com/Infini-AI-Lab/STEM, apps/main/stem.py and prepare_stem_checkpoint.py.
    status lingua_layer(const std::string& root) {
        const auto at = [&](std::size_t layer) { return root + std::to_string(layer) + ".feed_forward."; };
        const auto is_stem = [&](std::size_t layer) {
            return has(at(layer)) && !is_there(at(layer) + "w3.weight");
        };
        made_.options = {{"block", is_stem(index_) ? "stem" : "glu"}, {"activation", config_.activation}};
        if (status s = take_all(at(index_), "", {{"w1", "gate_proj"}, {"w2", "down_proj"}}); !s) return s;
        if (!is_stem(index_)) return take_linear(at(index_) + "w3", "up_proj");
        std::size_t ordinal = 0;
        for (std::size_t layer = 0; layer < index_; ++layer) ordinal += is_stem(layer) ? 1u : 0u;
        return take("stem_embeddings." + std::to_string(ordinal) + ".weight", "stem_embed.weight");
    }

    // MeKi in parallel to the FFN. Names: those of its published model (https://github.com/ningding-o/MeKi,
    // meki_modeling_demo.py), or those of layer files after the same prefix.
    status meki_layer(const std::string& at) {
        const std::string ffn = at + (has(at + "ffn.") ? "ffn." : "mlp.");
        if (status s = decoder_layer(ffn); !s) return s;
        if (auto dense = finished(status(), ffn); !dense)
            return dense.failure();
        else
            made_ = first_branch(*dense);

        const std::string from = at + "meki_module.", to = "branch.1.";
        made_.options.insert({{to + "block", "meki"}});
        if (!config_.norms) return config_.norms;
        if (!config_.eps.empty()) made_.options.insert({to + "eps", config_.eps});
        const bool word = has(from + "word_emb_projection.") || has(from + "word_proj.");
        if (status s = take_all(from, to, {{"gate_proj", "gate_proj"}, {"out_proj", "out_proj"}}); !s)
            return s;
        if (status s = take(from + "post_norm.weight", to + "post_norm.weight"); !s) return s;
        const std::string memory = has(from + "memory.") ? "memory.weight" : "embeddings.weight";
        if (status s = take(from + memory, to + "memory.weight", word); !s) return s;
        // A folded memory has only its table.
        if (!word && !has(from + "mix_norm.")) {
            made_.options.insert({to + "folded", "true"});
            return {};
        }
        if (status s = take(from + "mix_norm.weight", to + "mix_norm.weight"); !s) return s;
        if (status s = take_one_of({from + "alpha_scale", from + "alpha"}, to + "alpha"); !s) return s;
        return word ? word_memory(from, to) : status();
    }
    status word_memory(const std::string& from, const std::string& to) {
        if (status s = take_one_of({from + "beta_scale", from + "beta"}, to + "beta"); !s) return s;
        if (status s = take_one_of({"model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
                                    "language_model.model.embed_tokens.weight", "word_emb.weight"},
                                   to + "word_embed.weight");
            !s)
            return s;
        if (status s = take(from + "word_norm.weight", to + "word_norm.weight", true); !s) return s;
        if (is_there(from + "word_proj.weight"))
            return take(from + "word_proj.weight", to + "word_proj.weight");
        const std::string g = has(from + "word_proj.") ? "word_proj." : "word_emb_projection.";
        return take_all(from + g, to + "word_proj.",
                        {{"gate_proj", "gate_proj"}, {"up_proj", "up_proj"}, {"down_proj", "down_proj"}});
    }

    const checkpoint_tensors::tensors_by_name& tensors_;
    const checkpoint_config& config_;
    std::size_t index_;
    described_layer made_;
    std::set<std::string> used_;
};

}  // namespace io::detail
TIFFIN_END
