// The architectures of GGUF files that this decoder runs.
#pragma once

#include "known_keys.hpp"

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

// What architectures do not have in common. Pairs of numbers that are rotated: (2i, 2i + 1), else (i, i + n / 2).
struct architecture {
    std::string_view name;
    bool rotates_neighbours = false;
    bool normed_heads = false;       // an RMS norm over each head's query and key
    bool scaled_embeddings = false;  // by the root of d_model
    bool normed_outputs = false;     // an RMS norm of what attention and FFN add to the stream
    // Of so many layers, the last sees all tokens before, the others a window of them, at positions of their own, unless
    // the file tells which; 0: all see all.
    std::size_t windowed = 0;
    bool normed_values = false;   // an RMS norm without weight over each head's value; scores are not scaled
    bool per_layer_rows = false;  // per-layer embeddings, where the file tells their width
    bool alternating = false;     // several streams, see alternating_streams
    std::size_t own_keys = 0;     // layers with keys and values of their own, unless the file tells; 0: all
    double capped = 0;            // logits z are c tanh(z / c), unless the file tells c; 0: as they are
    std::span<const std::string_view> keys{};  // that it has beside those of all, see known_keys.hpp
};
inline constexpr architecture gemma3{.name = "gemma3",
                                     .normed_heads = true,
                                     .scaled_embeddings = true,
                                     .normed_outputs = true,
                                     .windowed = 6,
                                     .keys = known_keys::of_gemma3};
inline constexpr architecture gemma4 = [] {
    architecture a = gemma3;
    a.name = "gemma4";
    a.windowed = 5;
    a.normed_values = a.per_layer_rows = true;
    a.capped = 30;
    a.keys = known_keys::of_gemma4;
    return a;
}();
inline constexpr architecture gemma3n = [] {
    architecture a = gemma4;
    a.name = "gemma3n";
    a.alternating = true;
    a.own_keys = 20;
    a.keys = known_keys::of_gemma3n;
    return a;
}();
inline constexpr std::array<architecture, 8> architectures{{{.name = "llama", .rotates_neighbours = true},
                                                            {.name = "qwen2"},
                                                            {.name = "qwen3", .normed_heads = true},
                                                            {.name = "qwen3moe", .normed_heads = true},
                                                            {.name = "gemma", .scaled_embeddings = true},
                                                            gemma3,
                                                            gemma3n,
                                                            gemma4}};
