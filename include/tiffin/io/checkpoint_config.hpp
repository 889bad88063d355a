// The FFN settings of a published checkpoint's config.json or params.json.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/json_file.hpp>
#include <tiffin/norm/gaussian_top_k.hpp>
#include <tiffin/quoted.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

// Reads the value of a key into `to`: a string, a boolean or an unsigned integer. `to` is unchanged where the key is
// missing or null, which Python writes for None. Errors: errc::option where the value is of another type.
template <class T>
status read_key(const nlohmann::json& object, const char* key, T& to, const std::string& label) {
    const auto at = object.find(key);
    if (at == object.end() || at->is_null()) return {};
    constexpr bool truth = std::is_same_v<T, bool>, text = std::is_same_v<T, std::string>;
    if (truth ? at->is_boolean() : text ? at->is_string() : at->is_number_unsigned()) {
        to = at->template get<T>();
        return {};
    }
    return failure(errc::option, label, key, " of the configuration is ",
                   at->is_string() ? tiffin::detail::in_quotes(at->template get<std::string>())
                                   : tiffin::detail::printable(at->dump()),
                   truth  ? ", neither true nor false"
                   : text ? ", no text"
                          : ", no whole number from 0 on");
}

// A model type whose FFN is determined by its tensors and its activation alone, with the defaults that its class has
// for missing keys. Source: configuration_*.py of https://github.com/huggingface/transformers, 4.57.
struct checkpoint_type {
    std::string_view name;
    const char* activation = "silu";
    std::size_t layers = 32;
    const char* eps = "1e-06";  // rms_norm_eps; empty where the class has none
    std::size_t experts = 0, top_k = 0;
    double gate_sparsity = 0;  // of the first ten layers, where there are more than ten
};
inline constexpr std::array<checkpoint_type, 29> checkpoint_types{{
    {.name = "llama"},
    {.name = "mistral"},
    {.name = "mistral3", .layers = 40, .eps = "1e-05"},
    {.name = "qwen2"},
    {.name = "qwen3"},
    {.name = "gemma", .activation = "gelu_pytorch_tanh", .layers = 28},
    {.name = "gemma2", .activation = "gelu_pytorch_tanh", .layers = 26},
    {.name = "gemma3", .activation = "gelu_pytorch_tanh", .layers = 26},
    {.name = "gemma3_text", .activation = "gelu_pytorch_tanh", .layers = 26},
    {.name = "gemma3n", .activation = "gelu_pytorch_tanh", .layers = 35, .gate_sparsity = 0.95},
    {.name = "gemma3n_text", .activation = "gelu_pytorch_tanh", .layers = 35, .gate_sparsity = 0.95},
    {.name = "gemma4", .activation = "gelu_pytorch_tanh", .layers = 30},
    {.name = "gemma4_text", .activation = "gelu_pytorch_tanh", .layers = 30},
    {.name = "phi3", .eps = "1e-05"},
    {.name = "smollm3", .layers = 36},
    {.name = "olmo", .eps = ""},
    {.name = "olmo2", .eps = "1e-05"},
    {.name = "granite"},
    {.name = "cohere", .layers = 40, .eps = ""},
    {.name = "cohere2", .layers = 40, .eps = ""},
    {.name = "stablelm", .eps = ""},
    {.name = "glm4", .layers = 40, .eps = "1.5625e-07"},
    {.name = "exaone4", .eps = "1e-05"},
    {.name = "seed_oss", .layers = 64},
    {.name = "mixtral", .eps = "1e-05", .experts = 8, .top_k = 2},
    {.name = "qwen2_moe", .layers = 24, .experts = 60, .top_k = 4},
    {.name = "qwen3_moe", .layers = 24, .experts = 128, .top_k = 8},
    {.name = "olmoe", .layers = 16, .eps = "1e-05", .experts = 64, .top_k = 8},
    {.name = "bert", .activation = "gelu", .layers = 12, .eps = ""},
}};

inline const checkpoint_type* find_checkpoint_type(std::string_view name) noexcept {
    const auto* const at = std::find_if(checkpoint_types.begin(), checkpoint_types.end(),
                                        [&](const checkpoint_type& t) { return t.name == name; });
    return at == checkpoint_types.end() ? nullptr : at;
}

struct checkpoint_config {
    std::string type, activation;
    std::string eps;  // of the norms; empty where unknown
    std::size_t layers = 0, experts = 0, top_k = 0;
    bool renormalised = false;
    bool is_lingua = false;
    std::vector<double>
        gate_sparsity;  // of each layer: the share of its gate's values that does not pass; empty: 0
    // Failures of settings that only some layers need, returned by those: the router, and eps.
    status routing, norms;

    // How many deviations the values of a layer's gate must be above their mean to pass; none where all pass.
    [[nodiscard]] std::optional<float> gate_threshold(std::size_t layer) const {
        if (layer >= gate_sparsity.size() || gate_sparsity[layer] == 0) return {};
        return gaussian_top_k::passing(1 - gate_sparsity[layer]).deviations;
    }

    // Failures carry `label` as `where`.
    status read(const std::filesystem::path& folder, const std::string& label) {
        is_lingua = !is_there(folder / "config.json");
        if (is_lingua && !is_there(folder / "params.json"))
            return failure(errc::file, label, "there is no config.json");
        const auto whole = read_json(folder / (is_lingua ? "params.json" : "config.json"), label);
        if (!whole) return whole.failure();
        return is_lingua ? read_lingua(whole->value, label) : read_published(whole->value, label);
    }

private:
    static constexpr std::size_t most_layers = 1u << 20, most_experts = 1u << 16;

    status read_published(const nlohmann::json& whole, const std::string& label) {
        if (status s = read_key(whole, "model_type", type, label); !s) return s;
        const checkpoint_type* defaults = find_checkpoint_type(type);
        if (defaults == nullptr) return unknown_type(label);
        const auto text = whole.find("text_config");
        const nlohmann::json& config = text != whole.end() && text->is_object() ? *text : whole;
        if (&config != &whole) {
            // The text model of a vision-language model has a model_type, and so defaults, of its own.
            std::string own = type == "mistral3" ? "mistral" : "";
            if (status s = read_key(config, "model_type", own, label); !s) return s;
            if (const checkpoint_type* const known = find_checkpoint_type(own)) defaults = known;
        }
        layers = defaults->layers;
        if (status s = read_key(config, "num_hidden_layers", layers, label); !s) return s;
        if (layers == 0 || layers > most_layers)
            return failure(errc::option, label, "config.json has an impossible num_hidden_layers: ", layers);
        routing = read_routing(config, *defaults);
        norms = read_eps(config, *defaults);
        if (status s = read_gate_sparsity(config, *defaults, label); !s) return s;
        return read_activation(config, *defaults, label);
    }
    status read_routing(const nlohmann::json& config, const checkpoint_type& defaults) {
        static constexpr const char* where = "config.json";
        if (status s = read_key(config, "num_experts", experts, where); !s) return s;
        std::size_t local = 0;
        if (status s = read_key(config, "num_local_experts", local, where); !s) return s;
        experts = std::max(experts, local);
        if (experts == 0) experts = defaults.experts;
        if (experts > most_experts) return failure(errc::option, where, "tells of ", experts, " experts");
        top_k = defaults.top_k;
        if (status s = read_key(config, "num_experts_per_tok", top_k, where); !s) return s;
        if (top_k == 0 || experts == 0)
            return failure(errc::option, where, "num_experts_per_tok, or the number of experts, is missing");
        if (top_k > experts)
            return failure(errc::option, where, "num_experts_per_tok is ", top_k, ", of ", experts,
                           " experts");
        return read_key(config, "norm_topk_prob", renormalised, where);
    }
    status read_gate_sparsity(const nlohmann::json& config, const checkpoint_type& defaults,
                              const std::string& label) {
        if (defaults.gate_sparsity == 0) return {};
        static constexpr const char* key = "activation_sparsity_pattern";
        const auto told = config.find(key);
        if (told == config.end() || told->is_null()) {
            gate_sparsity.assign(layers, 0.0);
            if (layers > 10) std::fill_n(gate_sparsity.begin(), 10, defaults.gate_sparsity);
            return {};
        }
        if (!told->is_array() || told->size() != layers)
            return failure(errc::option, label, key, " of config.json are ",
                           told->is_array() ? told->size() : 0, " numbers; there are ", layers, " layers");
        for (const nlohmann::json& one : *told) {
            gate_sparsity.push_back(one.is_number() ? one.get<double>() : -1);
            if (!(gate_sparsity.back() >= 0 && gate_sparsity.back() < 1))
                return failure(errc::option, label, key, " of config.json has ", one.dump(),
                               ", no number from 0 to less than 1");
        }
        return {};
    }
    status read_eps(const nlohmann::json& config, const checkpoint_type& defaults) {
        eps = defaults.eps;
        const auto told = config.find("rms_norm_eps");
        if (told == config.end() || told->is_null()) return {};
        eps = told->is_string() ? told->get<std::string>() : told->dump();
        if (told->is_number()) return {};
        return failure(errc::option, "config.json", "rms_norm_eps is ", tiffin::detail::in_quotes(eps),
                       ", no finite number");
    }

    // Meta Lingua's params.json: its `model` object, or only that. Its FFN is always SwiGLU; the file does not name it.
    status read_lingua(const nlohmann::json& whole, const std::string& label) {
        const auto model = whole.find("model");
        type = "lingua";
        activation = "silu";
        const nlohmann::json& from = model != whole.end() && model->is_object() ? *model : whole;
        if (status s = read_key(from, "n_layers", layers, label); !s) return s;
        if (layers != 0 && layers <= most_layers) return {};
        return failure(errc::option, label, "params.json has no n_layers, or an impossible one");
    }
    [[nodiscard]] failure unknown_type(const std::string& label) const {
        std::string known;
        for (const checkpoint_type& t : checkpoint_types)
            known.append(known.empty() ? "" : ", ").append(t.name);
        return failure(errc::option, label, "model_type of config.json is ", tiffin::detail::in_quotes(type),
                       "; known are ", known);
    }
    status read_activation(const nlohmann::json& config, const checkpoint_type& defaults,
                           const std::string& label) {
        // Gemma's classes read hidden_activation, Gemma 1 also hidden_act; all other types hidden_act alone.
        const bool gemma = defaults.name.starts_with("gemma"), first = defaults.name == "gemma";
        std::string told = defaults.activation;
        if (!gemma || first)
            if (status s = read_key(config, "hidden_act", told, label); !s) return s;
        if (gemma)
            if (status s = read_key(config, "hidden_activation", told, label); !s) return s;
        static constexpr std::array<std::pair<std::string_view, const char*>, 6> known{
            {{"silu", "silu"},
             {"swish", "silu"},
             {"gelu", "gelu"},
             {"gelu_pytorch_tanh", "gelu_tanh"},
             {"gelu_new", "gelu_tanh"},
             {"relu", "relu"}}};
        // Gemma 1's configurations name gelu, but the models were trained with its tanh approximation.
        if (first && told == "gelu") told = "gelu_pytorch_tanh";
        for (const auto& [theirs, ours] : known)
            if (told == theirs) activation = ours;
        if (!activation.empty()) return {};
        return failure(errc::option, label, gemma && !first ? "hidden_activation" : "hidden_act",
                       " of config.json is ", tiffin::detail::in_quotes(told),
                       "; known are silu, swish, gelu, gelu_pytorch_tanh, gelu_new and relu");
    }
};

}  // namespace io::detail
TIFFIN_END
