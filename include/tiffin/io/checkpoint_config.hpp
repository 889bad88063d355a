// What the config.json, or params.json, of a published checkpoint says of its FFNs.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/quoted.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN
namespace io::detail {

// The parsed file, or nothing where it is missing or no JSON object.
inline std::optional<nlohmann::json> read_json(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return std::nullopt;
    auto parsed = nlohmann::json::parse(file, nullptr, false);
    if (!parsed.is_object()) return std::nullopt;
    return parsed;
}

// The value of a key where it is a T: a truth, a text or a whole number.
template <class T>
std::optional<T> value_of(const nlohmann::json& object, const char* key) {
    const auto at = object.find(key);
    if (at == object.end()) return std::nullopt;
    const bool fits = std::is_same_v<T, bool>          ? at->is_boolean()
                      : std::is_same_v<T, std::string> ? at->is_string()
                                                       : at->is_number_unsigned();
    return fits ? std::optional<T>(at->template get<T>()) : std::nullopt;
}

// Model types whose FFN is what its tensors and hidden_act say, and no more.
inline constexpr std::array<std::string_view, 25> checkpoint_types{
    {"llama",     "mistral",     "mistral3", "qwen2",   "qwen3",   "gemma",    "gemma2",
     "gemma3",    "gemma3_text", "phi3",     "smollm3", "olmo",    "olmo2",    "granite",
     "cohere",    "cohere2",     "stablelm", "glm4",    "exaone4", "seed_oss", "mixtral",
     "qwen2_moe", "qwen3_moe",   "olmoe",    "bert"}};

struct checkpoint_config {
    std::string type, activation;
    std::string eps;  // of the norms; empty where the file does not tell
    std::size_t layers = 0, experts = 0, top_k = 0;
    bool renormalised = false;
    bool is_lingua = false;

    // Errors carry `label` as their place.
    status read(const std::filesystem::path& folder, const std::string& label) {
        const auto whole = read_json(folder / "config.json");
        if (!whole) {
            if (const auto params = read_json(folder / "params.json")) return read_lingua(*params, label);
            return failure(errc::file, label, "there is no config.json that is a JSON object");
        }
        type = value_of<std::string>(*whole, "model_type").value_or("");
        if (status s = check_type(label); !s) return s;
        const auto text = whole->find("text_config");
        const nlohmann::json& config = text != whole->end() && text->is_object() ? *text : *whole;
        const auto count = [&](const char* key) { return value_of<std::size_t>(config, key).value_or(0); };
        layers = count("num_hidden_layers");
        if (layers == 0 || layers > (1u << 20))
            return failure(errc::option, label, "config.json has no num_hidden_layers, or an impossible one");
        experts = std::max(count("num_experts"), count("num_local_experts"));
        if (experts > (1u << 16))
            return failure(errc::option, label, "config.json tells of ", experts, " experts");
        top_k = count("num_experts_per_tok");
        renormalised = value_of<bool>(config, "norm_topk_prob").value_or(false);
        if (const auto told = config.find("rms_norm_eps"); told != config.end() && told->is_number_float())
            eps = told->dump();
        return read_activation(config, label);
    }

private:
    // Meta Lingua's: the model's part of it, or that alone. Its FFN is SwiGLU, which the file does not say.
    status read_lingua(const nlohmann::json& whole, const std::string& label) {
        const auto model = whole.find("model");
        type = "lingua";
        activation = "silu";
        is_lingua = true;
        layers =
            value_of<std::size_t>(model != whole.end() && model->is_object() ? *model : whole, "n_layers")
                .value_or(0);
        if (layers != 0 && layers <= (1u << 20)) return {};
        return failure(errc::option, label, "params.json has no n_layers, or an impossible one");
    }
    [[nodiscard]] status check_type(const std::string& label) const {
        std::string known;
        for (const std::string_view t : checkpoint_types) {
            if (t == type) return {};
            known.append(known.empty() ? "" : ", ").append(t);
        }
        return failure(errc::option, label, "model_type of config.json is ", tiffin::detail::in_quotes(type),
                       "; known are ", known);
    }
    status read_activation(const nlohmann::json& config, const std::string& label) {
        auto told = value_of<std::string>(config, "hidden_activation");
        if (!told) told = value_of<std::string>(config, "hidden_act");
        static constexpr std::array<std::pair<std::string_view, const char*>, 6> known{
            {{"silu", "silu"},
             {"swish", "silu"},
             {"gelu", "gelu"},
             {"gelu_pytorch_tanh", "gelu_tanh"},
             {"gelu_new", "gelu_tanh"},
             {"relu", "relu"}}};
        // Gemma's first configurations say gelu and mean its approximation, which they were trained with.
        if (type == "gemma" && told == "gelu") told = "gelu_pytorch_tanh";
        for (const auto& [theirs, ours] : known)
            if (told == theirs) activation = ours;
        if (!activation.empty()) return {};
        return failure(errc::option, label, "hidden_act of config.json is ",
                       tiffin::detail::in_quotes(told.value_or("")),
                       "; known are silu, swish, gelu, gelu_pytorch_tanh, gelu_new and relu");
    }
};

}  // namespace io::detail
TIFFIN_END
