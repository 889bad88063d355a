// What a GGUF file's metadata may say: a key that changes numbers, or tokens, and is not read is refused by name.
#pragma once

#include <tiffin/io/gguf.hpp>
#include <tiffin/quoted.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace known_keys {

// Of the architecture: read by this decoder or by tiffin::io::model, which refuses what it does not compute.
inline constexpr std::array<std::string_view, 16> model_read{"block_count",
                                                             "context_length",
                                                             "embedding_length",
                                                             "attention.head_count",
                                                             "attention.head_count_kv",
                                                             "attention.key_length",
                                                             "attention.value_length",
                                                             "attention.layer_norm_rms_epsilon",
                                                             "attention.scale",
                                                             "rope.dimension_count",
                                                             "rope.freq_base",
                                                             "rope.scaling.type",
                                                             "rope.scaling.factor",
                                                             "rope.scale_linear",
                                                             "rope.scaling.attn_factor",
                                                             "expert_used_count"};
// The same, of architectures whose layers see a window, have rows of their own, and alternate between streams.
inline constexpr std::array<std::string_view, 9> of_gemma3n{"attention.sliding_window",
                                                            "attention.sliding_window_pattern",
                                                            "rope.freq_base_swa",
                                                            "final_logit_softcapping",
                                                            "attention.shared_kv_layers",
                                                            "embedding_length_per_layer_input",
                                                            "activation_sparsity_scale",
                                                            "altup.active_idx",
                                                            "altup.num_inputs"};
inline constexpr std::span<const std::string_view> of_gemma3 = std::span(of_gemma3n).first(4);
inline constexpr std::array<std::string_view, 9> of_gemma4{
    "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa",
    "final_logit_softcapping",  "attention.shared_kv_layers",       "embedding_length_per_layer_input",
    "rope.dimension_count_swa", "attention.key_length_swa",         "attention.value_length_swa"};
// Of the architecture: what tensors say by their shapes, what is for other stretchings of positions than those that are
// read, and what is only told.
inline constexpr std::array<std::string_view, 12> model_told{"vocab_size",
                                                             "feed_forward_length",
                                                             "expert_count",
                                                             "expert_feed_forward_length",
                                                             "expert_shared_feed_forward_length",
                                                             "tensor_data_layout",
                                                             "pooling_type",
                                                             "rope.scaling.original_context_length",
                                                             "rope.scaling.finetuned",
                                                             "rope.scaling.yarn_log_multiplier",
                                                             "rope.scaling.yarn_beta_fast",
                                                             "rope.scaling.yarn_beta_slow"};
// Of the architecture: a key with a value that asks for nothing.
struct idle_value {
    std::string_view key;
    double value;  // of a bool 0 or 1
};
inline constexpr std::array<idle_value, 35> model_idle{{
    {"attention.causal", 1},
    {"attention.sliding_window", 0},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.layer_norm_epsilon", 0},
    {"attention.group_norm_epsilon", 0},
    {"attention.group_norm_groups", 0},
    {"attention.q_lora_rank", 0},
    {"attention.kv_lora_rank", 0},
    {"attention.output_scale", 1},
    {"attention.value_scale", 1},
    {"attention.temperature_scale", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"router_logit_softcapping", 0},
    {"residual_scale", 0},
    {"residual_scale", 1},
    {"embedding_scale", 0},
    {"embedding_scale", 1},
    {"logit_scale", 0},
    {"logit_scale", 1},
    {"use_parallel_residual", 0},
    {"expert_weights_norm", 1},
    {"expert_gating_func", 0},
    {"expert_gating_func", 1},
    {"expert_shared_count", 0},
    {"expert_weights_scale", 0},
    {"expert_weights_scale", 1},
    {"expert_group_count", 0},
    {"expert_group_count", 1},
    {"expert_group_used_count", 0},
    {"leading_dense_block_count", 0},
    {"nextn_predict_layers", 0},
    {"rope.scaling.yarn_ext_factor", 0},
    {"rope.scaling.yarn_attn_factor", 1},
}};

// Of the tokenizer: read.
inline constexpr std::array<std::string_view, 13> tokenizer_read{
    "model",         "pre",           "tokens",          "token_type",   "scores",
    "merges",        "bos_token_id",  "eos_token_id",    "eot_token_id", "eom_token_id",
    "add_bos_token", "add_eos_token", "add_space_prefix"};
// Of the tokenizer: tokens with a use that nothing here makes, and counts.
inline constexpr std::array<std::string_view, 16> tokenizer_told{
    "unknown_token_id", "padding_token_id", "seperator_token_id", "separator_token_id",
    "cls_token_id",     "mask_token_id",    "token_type_count",   "fim_pre_token_id",
    "fim_suf_token_id", "fim_mid_token_id", "fim_pad_token_id",   "fim_rep_token_id",
    "fim_sep_token_id", "prefix_token_id",  "suffix_token_id",    "middle_token_id"};
inline constexpr std::array<idle_value, 4> tokenizer_idle{{
    {"add_sep_token", 0},
    {"remove_extra_whitespaces", 0},
    {"normalizer.lowercase", 0},
    {"normalizer.strip_accents", 0},
}};

// A number or a bool; none of what is another kind.
inline std::optional<double> as_number(const tiffin::io::gguf_value& value) {
    return std::visit(
        [](const auto& held) -> std::optional<double> {
            if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(held)>>)
                return static_cast<double>(held);
            else
                return std::nullopt;
        },
        value);
}

inline bool is_among(std::string_view key, std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), key) != names.end();
}

inline bool is_idle(std::string_view key, const tiffin::io::gguf_value& value,
                    std::span<const idle_value> all) {
    const auto number = as_number(value);
    return number && std::any_of(all.begin(), all.end(),
                                 [&](const idle_value& i) { return i.key == key && i.value == *number; });
}

}  // namespace known_keys

// What is wrong with the metadata of a model of this architecture, which has these keys beside those of all; or nothing.
inline std::string unread_key(const tiffin::io::gguf_file& file, std::string_view architecture,
                              std::span<const std::string_view> of_its_own) {
    using namespace known_keys;
    const std::string own = std::string(architecture) + ".", of_tokenizer = "tokenizer.ggml.";
    const auto context = file.find<double>(own + "context_length").value_or(0);
    for (const auto& [key, value] : file.metadata()) {
        const bool ours = key.starts_with(own);
        if (!ours && !key.starts_with(of_tokenizer)) continue;
        const std::string_view name = key.substr(ours ? own.size() : of_tokenizer.size());
        if (ours ? is_among(name, model_read) || is_among(name, of_its_own) || is_among(name, model_told) ||
                       is_idle(name, value, model_idle)
                 : is_among(name, tokenizer_read) || is_among(name, tokenizer_told) ||
                       is_idle(name, value, tokenizer_idle))
            continue;
        // A window as wide as the context hides nothing.
        const auto number = as_number(value);
        if (ours && name == "attention.sliding_window" && number && context > 0 && *number >= context)
            continue;
        std::ostringstream wrong;
        wrong << "metadata " << tiffin::detail::in_quotes(key);
        if (number) wrong << " = " << *number;
        wrong << " is not read by this decoder, and may change "
              << (ours ? "what the model computes" : "tokens");
        return wrong.str();
    }
    return "";
}
