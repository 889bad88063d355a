// Composition texts of the blocks of layer files that contain no other block.
#pragma once

#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/io/layer_options.hpp>
#include <tiffin/piece.hpp>
#include <tiffin/plan/text.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

TIFFIN_BEGIN
namespace io {
namespace detail {

// Concatenates strings and integers.
template <class... Pieces>
std::string text_of(const Pieces&... pieces) {
    std::string all;
    (tiffin::detail::piece(pieces).append_to(all), ...);
    return all;
}
// The shortest text that parses to the same float.
inline std::string number_text(float number) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof text, number).ptr);
}

// A block in a file: its options and tensors, whose names have the prefixes of `at`.
struct described_block {
    layer_options& options;
    const weights& given;
    block_place at;

    [[nodiscard]] bool has(std::string_view tensor) const {
        return given.find(at.tensors + std::string(tensor)) != nullptr;
    }
    // Reads an option; `to` is unchanged where it is not given.
    template <class Value>
    status read(std::string_view option, Value& to) const {
        return options.read(at.keys + std::string(option), to);
    }
    // An option that is one of these words.
    status read(std::string_view option, std::span<const std::string_view> words,
                std::string_view& to) const {
        return options.read(at.keys + std::string(option), words, to);
    }
    status read_activation(std::string_view& to) const {
        static constexpr auto activations = std::to_array<std::string_view>(
            {"silu", "gelu", "gelu_tanh", "relu", "sigmoid", "identity", "relu_squared"});
        return read("activation", activations, to);
    }
    // An integer that has no default.
    status read_needed(std::string_view option, std::string_view what, std::size_t& to) const {
        const std::string key = at.keys + std::string(option);
        if (!options.has(key)) return failure(errc::option, key, "missing from __metadata__", what);
        return options.read(key, to);
    }
    status read_eps(std::string& to, float usual) const {
        if (status s = read("eps", usual); !s) return s;
        to = number_text(usual);
        return {};
    }
    // The composition text of a modulator's norm.
    status read_norm(std::string& to) const {
        std::string_view norm = "l2";
        std::string eps;
        if (status s = read("norm", std::array<std::string_view, 2>{{"l2", "rms"}}, norm); !s) return s;
        if (status s = read_eps(eps, 1e-6f); !s) return s;
        to = norm == "rms" ? text_of("unweighted(rms(eps=", eps, "))") : text_of(norm, "(eps=", eps, ")");
        return {};
    }
};

// The name prefix of a mixture's expert tensors. Fails unless there are num_experts experts.
inline result<std::string> experts_prefix(const described_block& of) {
    std::size_t count = 0;
    if (status s = of.read_needed("num_experts", "", count); !s) return s.failure();
    const std::string prefix = of.at.tensors + "experts.";
    const std::size_t found = tiffin::detail::numbered_parts(of.given, prefix);
    if (found < count)
        return failure(errc::missing_tensor, prefix + std::to_string(found), "missing; num_experts is ",
                       count);
    for (const weights::entry& e : of.given.entries())
        if (found > count && e.name.starts_with(prefix + std::to_string(found - 1) + "."))
            return failure(errc::unused_tensor, e.name, "given, but num_experts is ", count);
    return prefix;
}
// A hash mixture's top_k is the number of columns of its map; the option, where given, must agree.
inline status check_map(const described_block& of) {
    std::size_t top_k = 0;
    if (status s = of.read("top_k", top_k); !s) return s;
    const tensor_view* const map = of.given.find(of.at.tensors + "hash_map");
    const std::size_t columns = map != nullptr && map->shape.rank() == 2 ? map->shape[1] : 1;
    if (top_k == 0 || map == nullptr || top_k == columns) return {};
    return failure(errc::option, of.at.keys + "top_k", "is ", top_k, "; ", of.at.tensors,
                   "hash_map gives a token ", columns);
}

// The activation option (default `usual`) between the texts `before` and `after`.
inline result<std::string> gated_text(const described_block& of, std::string_view usual,
                                      std::string_view before, std::string_view after) {
    if (status s = of.read_activation(usual); !s) return s.failure();
    return text_of(before, usual, after);
}

inline result<std::string> mlp_text(const described_block& of) {
    return gated_text(of, "gelu", "ffn(gate(", "))");
}
inline result<std::string> glu_text(const described_block& of) {
    return gated_text(of, "silu", "ffn(gate(", "), dense)");
}
inline result<std::string> stem_text(const described_block& of) {
    return gated_text(of, "silu", "ffn(gate(", "), token_embedding)");
}
inline result<std::string> stem_gate_text(const described_block& of) {
    return gated_text(of, "silu", "ffn(gate(", ", token_embedding), dense)");
}
inline result<std::string> stem_hybrid_text(const described_block& of) {
    return gated_text(of, "silu", "ffn(gate(", "), sum(dense, token_embedding))");
}

// MeKi's memory, determined by the tensors of the file: without word embeddings the static one, without memory.weight
// the dynamic one, else both (trained_memory); with a norm before G where word_norm is present, with one matrix for G
// where word_proj.weight is.
inline std::string memory_text(const described_block& of, const std::string& eps) {
    if (!of.has("word_embed.weight")) return text_of("static_memory(eps=", eps, ")");
    const std::string word =
        of.has("word_norm.weight") ? text_of("(normed_word(eps=", eps, "))") : std::string();
    return text_of(of.has("memory.weight") ? "trained_memory(" : "dynamic_memory(",
                   of.has("word_proj.weight") ? "linear_word_memory" : "word_memory", word, ", eps=", eps,
                   ")");
}

inline result<std::string> meki_text(const described_block& of) {
    static constexpr auto fusions =
        std::to_array<std::string_view>({"add_sigmoid", "mul_sigmoid", "add_silu", "mul_silu"});
    static constexpr auto inputs = std::to_array<std::string_view>({"normed", "residual"});
    std::string_view fusion = fusions[0], input = inputs[0];
    std::string eps;
    bool folded = false;
    if (status s = of.read("fusion", fusions, fusion); !s) return s.failure();
    if (status s = of.read("gate_input", inputs, input); !s) return s.failure();
    if (status s = of.read_eps(eps, 1e-6f); !s) return s.failure();
    if (status s = of.read("folded", folded); !s) return s.failure();
    const std::string block =
        text_of("ffn(gate(", fusion.substr(4), "), ", folded ? "memory_injection" : memory_text(of, eps),
                ", ", fusion.starts_with("add") ? "add" : "multiply", ", memory_output(eps=", eps, "))");
    return input == "normed" ? block : text_of("on_residual(", block, ")");
}
inline result<std::string> ple_text(const described_block& of) {
    std::string eps;
    bool folded = false;
    if (status s = of.read_eps(eps, 1e-6f); !s) return s.failure();
    if (status s = of.read("folded", folded); !s) return s.failure();
    const std::string memory = !folded && of.has("word_embed.weight") ? text_of("ple_memory(eps=", eps, ")")
                               : folded || of.has("memory.weight")    ? "memory_injection"
                                                                      : "per_layer_input";
    return gated_text(of, "gelu_tanh", "ffn(gate(",
                      text_of("), ", memory, ", multiply, memory_output(eps=", eps, "))"));
}

inline result<std::string> structmoe_text(const described_block& of) {
    static constexpr auto fusions = std::to_array<std::string_view>({"additive", "gated", "post_activation"});
    static constexpr auto placements = std::to_array<std::string_view>({"up", "down"});
    std::string_view fusion = fusions[0], placement = placements[0], phi = "gelu";
    std::size_t top_k = 1;
    if (status s = of.read("fusion", fusions, fusion); !s) return s.failure();
    if (status s = of.read("top_k", top_k); !s) return s.failure();
    if (status s = of.read_activation(phi); !s) return s.failure();
    if (status s = of.read("placement", placements, placement); !s) return s.failure();
    const std::string bank = text_of("routed_low_rank(softmax_topk(top_k=", top_k, "))");
    if (placement == "down" && fusion != "additive")
        return failure(errc::option, of.at.keys + "fusion", "is '", fusion,
                       "'; a bank at the down projection is added to its result (additive)");
    if (placement == "down")
        return text_of("ffn(gate(", phi, "), none, multiply, project(no_norm, sum(dense, ", bank, ")))");
    if (fusion == "additive") return text_of("ffn(gate(", phi, ", sum(dense, ", bank, ")))");
    return text_of("ffn(gate(", phi, ", named(dense, 'up_proj')), ", bank,
                   fusion == "gated" ? ", multiply)" : ", add)");
}

// With a matrix per token where `in_proj.weight` is present, as the up source where `gate_proj.weight` is, else
// multiplied with the FFN's result.
inline result<std::string> deep_embed_text(const described_block& of) {
    constexpr std::string_view usual = "relu_squared", gate = "ffn(gate(";
    if (of.has("in_proj.weight")) return gated_text(of, usual, gate, "), on_residual(deep_embed_matrix))");
    if (of.has("gate_proj.weight")) return gated_text(of, usual, gate, "), deep_embed)");
    return gated_text(of, usual, "fused(ffn(gate(", ")), deep_embed, multiply)");
}
// Folded where `lookup.weight` is present, else with its experts.
inline result<std::string> mole_text(const described_block& of) {
    auto shared = gated_text(of, "gelu", "ffn(gate(", "))");
    if (!shared) return shared;
    if (of.has("lookup.weight")) return text_of("sum(", *shared, ", lookup_experts)");
    return text_of("sum(", *shared, ", mixture(softmax_all, through('', per_layer_input, ", *shared, ")))");
}
inline result<std::string> engram_text(const described_block& of) {
    std::string eps;
    if (status s = of.read_eps(eps, 1e-5f); !s) return s.failure();
    return text_of("engram(eps=", eps, ")");
}
inline result<std::string> l3_text(const described_block& of) {
    std::string eps;
    if (status s = of.read_eps(eps, 1e-5f); !s) return s.failure();
    return text_of("l3(eps=", eps, ")");
}
inline result<std::string> longcat_text(const described_block& of) {
    std::size_t terms = 0;
    if (status s =
            of.read_needed("terms", "; it counts the rows that are averaged and has no default", terms);
        !s)
        return s.failure();
    return text_of("longcat_embedding(terms=", terms, ")");
}

inline status read_rows_per_head(const described_block& of, std::size_t& top_k) {
    return of.read_needed("top_k", "; it counts the rows that a head reads and has no default", top_k);
}
// Memory+ where `gate_proj.weight` is present, else the memory rows alone.
inline result<std::string> product_keys_text(const described_block& of) {
    std::size_t top_k = 0;
    if (status s = read_rows_per_head(of, top_k); !s) return s.failure();
    const std::string rows = text_of("product_key_memory(top_k=", top_k, ")");
    if (!of.has("gate_proj.weight")) return rows;
    return gated_text(of, "silu", "ffn(gate(", text_of("), ", rows, ")"));
}
inline result<std::string> peer_text(const described_block& of) {
    std::size_t top_k = 0;
    if (status s = read_rows_per_head(of, top_k); !s) return s.failure();
    return gated_text(of, "gelu",
                      text_of("routed_embedding(gated_rows(product_keys(top_k=", top_k, "), row_activation("),
                      "), 'down_embed.weight'), chosen_rows('up_embed.weight'))");
}

}  // namespace detail
}  // namespace io
TIFFIN_END
