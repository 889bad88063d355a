// A checkpoint as Hugging Face publishes them: config.json, and safetensors files, one or several with an index.
#pragma once

#include <tiffin/io/checkpoint_config.hpp>
#include <tiffin/io/model_source.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/quoted.hpp>

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

class checkpoint final : public model_source {
public:
    // `path`: the folder, or its config.json.
    static result<std::shared_ptr<const model_source>> open(const std::filesystem::path& path) {
        auto made = std::make_shared<checkpoint>();
        const bool of_config = path.filename() == "config.json";
        made->folder_ = of_config ? path.parent_path() : path;
        made->label_ = path.string();
        if (status s = made->config_.read(made->folder_, made->label_); !s) return s.failure();
        if (status s = made->open_files(); !s) return s.failure();
        return std::shared_ptr<const model_source>(std::move(made));
    }

    [[nodiscard]] std::string_view architecture() const noexcept override { return config_.type; }
    [[nodiscard]] std::size_t layers() const noexcept override { return config_.layers; }
    [[nodiscard]] const std::string& label() const noexcept override { return label_; }

    [[nodiscard]] result<described_layer> layer(std::size_t index) const override {
        const std::string number = std::to_string(index) + ".";
        for (const std::string_view root :
             {"model.layers.", "model.language_model.layers.", "language_model.model.layers.", "layers."}) {
            const std::string at = std::string(root) + number;
            if (has(at + "mlp.")) return decoder_layer(at + "mlp.");
            if (has(at + "block_sparse_moe.")) return mixtral_layer(at + "block_sparse_moe.");
        }
        for (const std::string_view root : {"encoder.layer.", "bert.encoder.layer."})
            if (has(std::string(root) + number + "intermediate.dense."))
                return encoder_layer(std::string(root) + number);
        return failure(errc::missing_tensor, "layers." + number + "mlp",
                       "missing; known are the names of Llama, Qwen, "
                       "Gemma, Phi 3, Mixtral and BERT");
    }

private:
    // The block's tensors as they are taken; what is left over is an error.
    struct taking {
        const checkpoint& from;
        described_layer made{};
        std::set<std::string> used{};

        status take(const std::string& name, const std::string& as, bool optional = false) {
            const tensor_view* const t = from.find(name);
            if (t == nullptr) {
                if (optional) return {};
                return failure(errc::missing_tensor, name, "missing; the FFN of '", from.config_.type,
                               "' reads it");
            }
            used.insert(name);
            made.tensors.add(as, *t);
            return {};
        }
        // A weight and, if there is one, its bias.
        status take_linear(const std::string& name, const std::string& as) {
            if (status s = take(name + ".weight", as + ".weight"); !s) return s;
            return take(name + ".bias", as + ".bias", true);
        }
        // All tensors whose names begin so have been used.
        result<described_layer> done(const std::string& prefix) {
            for (const safetensors_file& f : from.files_)
                for (const weights::entry& e : f.tensors().entries())
                    if (e.name.starts_with(prefix) && !used.contains(e.name))
                        return failure(errc::unused_tensor, e.name, "the FFN of '", from.config_.type,
                                       "' has no tensor of this name");
            return std::move(made);
        }
    };

    result<described_layer> decoder_layer(const std::string& at) const {
        if (find(at + "gate.weight") != nullptr) return qwen_mixture(at);
        taking t{*this};
        t.made.options = {{"block", "glu"}, {"activation", config_.activation}};
        if (status s = t.take_linear(at + "down_proj", "down_proj"); !s) return s.failure();
        if (find(at + "gate_up_proj.weight") == nullptr) {
            for (const std::string part : {"gate_proj", "up_proj"})
                if (status s = t.take_linear(at + part, part); !s) return s.failure();
            return t.done(at);
        }
        const std::string both = at + "gate_up_proj.weight";
        if (status s = add_gate_and_up(t.made.tensors, *find(both), both); !s) return s.failure();
        t.used.insert(both);
        return t.done(at);
    }
    result<described_layer> qwen_mixture(const std::string& at) const {
        taking t{*this};
        const bool renormalised = config_.renormalised;
        if (status s = begin_mixture(t, at, renormalised ? "softmax_topk_renorm" : "softmax_topk"); !s)
            return s.failure();
        for (std::size_t e = 0; e < config_.experts; ++e)
            for (const std::string part : {"gate_proj", "up_proj", "down_proj"})
                if (status s = t.take_linear(at + "experts." + std::to_string(e) + "." + part,
                                             "experts." + std::to_string(e) + "." + part);
                    !s)
                    return s.failure();
        return t.done(at);
    }
    result<described_layer> mixtral_layer(const std::string& at) const {
        taking t{*this};
        if (status s = begin_mixture(t, at, "softmax_topk_renorm"); !s) return s.failure();
        constexpr std::array<std::pair<const char*, const char*>, 3> names{
            {{"w1", "gate_proj"}, {"w3", "up_proj"}, {"w2", "down_proj"}}};
        for (std::size_t e = 0; e < config_.experts; ++e)
            for (const auto& [theirs, ours] : names) {
                const std::string expert = "experts." + std::to_string(e) + ".";
                if (status s = t.take_linear(at + expert + theirs, expert + ours); !s) return s.failure();
            }
        return t.done(at);
    }
    status begin_mixture(taking& t, const std::string& at, const char* order) const {
        if (config_.top_k == 0 || config_.experts == 0)
            return failure(errc::option, "config.json",
                           "num_experts_per_tok, or the number of experts, is missing");
        t.made.options = {{"block", "moe"},
                          {"router_order", order},
                          {"top_k", std::to_string(config_.top_k)},
                          {"num_experts", std::to_string(config_.experts)},
                          {"expert.block", "glu"},
                          {"expert.activation", config_.activation}};
        return t.take(at + "gate.weight", "router.weight");
    }
    result<described_layer> encoder_layer(const std::string& at) const {
        taking t{*this};
        t.made.options = {{"block", "mlp"}, {"activation", config_.activation}};
        if (status s = t.take_linear(at + "intermediate.dense", "up_proj"); !s) return s.failure();
        if (status s = t.take_linear(at + "output.dense", "down_proj"); !s) return s.failure();
        return t.done(at + "intermediate.");
    }

    [[nodiscard]] const tensor_view* find(const std::string& name) const {
        for (const safetensors_file& f : files_)
            if (const tensor_view* const t = f.tensors().find(name)) return t;
        return nullptr;
    }
    // Whether there is a tensor whose name begins so.
    [[nodiscard]] bool has(const std::string& prefix) const {
        for (const safetensors_file& f : files_) {
            const auto at = f.tensors().places().lower_bound(prefix);
            if (at != f.tensors().places().end() && at->first.starts_with(prefix)) return true;
        }
        return false;
    }
    status open_files() {
        std::set<std::string> names;
        if (const auto index = read_json(folder_ / "model.safetensors.index.json")) {
            const auto map = index->find("weight_map");
            if (map == index->end() || !map->is_object())
                return failure(errc::file, label_, "model.safetensors.index.json has no weight_map");
            for (const auto& [tensor, file] : map->items()) {
                const std::string name = file.is_string() ? file.template get<std::string>() : "";
                // Files of this folder, and no others.
                if (name.empty() || std::filesystem::path(name).filename() != name)
                    return failure(errc::file, label_, "model.safetensors.index.json has ",
                                   tiffin::detail::in_quotes(tensor), " in no file of its folder");
                names.insert(name);
            }
        } else {
            names.insert("model.safetensors");
        }
        for (const std::string& name : names) {
            auto opened = safetensors_file::map(folder_ / name);
            if (!opened) return opened.failure();
            files_.push_back(*std::move(opened));
        }
        return {};
    }

    std::filesystem::path folder_;
    std::string label_;
    checkpoint_config config_;
    std::vector<safetensors_file> files_;
};

}  // namespace io::detail
TIFFIN_END
