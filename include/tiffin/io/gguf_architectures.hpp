// The architectures of GGUF models whose FFNs are read.
#pragma once

#include <tiffin/config.hpp>

#include <array>
#include <string_view>

TIFFIN_BEGIN
namespace io::detail {

// How an architecture weights its top-k experts: softmax, renormalised or plain, or by its metadata (told).
enum class gguf_routing { renormalised, plain, told };

struct gguf_architecture {
    std::string_view name;
    std::string_view activation;
    gguf_routing routing = gguf_routing::renormalised;
    bool gate_in_up = false;  // ffn_up has the gate's rows, then up's
};

// Architectures of gated FFNs, and of mixtures of them. The activation is the one that llama.cpp computes.
inline constexpr std::array<gguf_architecture, 34> gguf_architectures{{
    {"llama", "silu"},
    {"mistral3", "silu"},
    {"qwen2", "silu"},
    {"qwen2vl", "silu"},
    {"qwen3", "silu"},
    {"qwen3vl", "silu"},
    {"smollm3", "silu"},
    {"internlm2", "silu"},
    {"minicpm", "silu"},
    {"stablelm", "silu"},
    {"olmo", "silu"},
    {"olmo2", "silu"},
    {"exaone", "silu"},
    {"exaone4", "silu"},
    {"granite", "silu"},
    {"command-r", "silu"},
    {"cohere2", "silu"},
    {"xverse", "silu"},
    {"baichuan", "silu"},
    {"seed_oss", "silu"},
    {"ernie4_5", "silu"},
    {"gemma", "gelu_tanh"},
    {"gemma2", "gelu_tanh"},
    {"gemma3", "gelu_tanh"},
    {"gemma3n", "gelu_tanh"},
    {"gemma4", "gelu_tanh"},
    {"gemma-embedding", "gelu_tanh"},
    {"phi3", "silu", gguf_routing::renormalised, true},
    {"glm4", "silu", gguf_routing::renormalised, true},
    {"qwen2moe", "silu", gguf_routing::plain},
    {"qwen3moe", "silu"},
    {"olmoe", "silu", gguf_routing::plain},
    {"granitemoe", "silu"},
    {"deepseek2", "silu", gguf_routing::told},
}};

}  // namespace io::detail
TIFFIN_END
