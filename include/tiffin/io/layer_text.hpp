// The composition text of a layer file: its `composition`, or the one that `block` and its options mean.
#pragma once

#include <tiffin/io/block_texts.hpp>
#include <tiffin/io/layer_options.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

TIFFIN_BEGIN
namespace io {

// Makes the text; each kind of block is a function from its options and tensors to a text.
class layer_text {
public:
    layer_text(layer_options& options, const weights& given) : options_(options), given_(given) {}

    // Errors: errc::option for an unknown or missing block or option, with the key.
    result<std::string> read() { return read(place{}); }

private:
    using block = detail::described_block;
    using place = detail::block_place;

    // The most blocks inside one another: the nesting limit of composition texts.
    static constexpr std::size_t deepest = text_limits::depth;

    result<std::string> read(const place& at) {
        const std::string* const kind = options_.find(at.keys + "block");
        if (const std::string* const text = options_.find(at.keys + "composition")) {
            if (kind == nullptr) return *text;
            return failure(errc::option, at.keys + "composition", "given beside block ",
                           tiffin::detail::in_quotes(*kind), "; one of the two says what the block is");
        }
        if (kind == nullptr) return failure(errc::option, at.keys + "block", "missing from __metadata__");
        if (depth_ == deepest)
            return failure(errc::option, at.keys + "block", "lies deeper than ", deepest,
                           " blocks inside one another");
        ++depth_;
        auto text = of_kind(*kind, {options_, given_, at});
        --depth_;
        return text;
    }
    result<std::string> of_kind(const std::string& kind, const block& of) {
        struct known {
            std::string_view name;
            result<std::string> (layer_text::*text)(const block&);
        };
        static constexpr auto all =
            std::to_array<known>({{"mlp", &layer_text::plain<detail::mlp_text>},
                                  {"glu", &layer_text::plain<detail::glu_text>},
                                  {"stem", &layer_text::plain<detail::stem_text>},
                                  {"stem_gate", &layer_text::plain<detail::stem_gate_text>},
                                  {"stem_hybrid", &layer_text::plain<detail::stem_hybrid_text>},
                                  {"moe", &layer_text::moe},
                                  {"hash_moe", &layer_text::hash_moe},
                                  {"structmoe", &layer_text::plain<detail::structmoe_text>},
                                  {"meki", &layer_text::plain<detail::meki_text>},
                                  {"ple", &layer_text::plain<detail::ple_text>},
                                  {"retoken", &layer_text::retoken},
                                  {"mort", &layer_text::mort},
                                  {"deep_embed", &layer_text::plain<detail::deep_embed_text>},
                                  {"mole", &layer_text::plain<detail::mole_text>},
                                  {"product_keys", &layer_text::plain<detail::product_keys_text>},
                                  {"peer", &layer_text::plain<detail::peer_text>},
                                  {"l3", &layer_text::plain<detail::l3_text>},
                                  {"engram", &layer_text::plain<detail::engram_text>},
                                  {"longcat_embedding", &layer_text::plain<detail::longcat_text>},
                                  {"parallel", &layer_text::parallel}});
        std::string names;
        for (const known& k : all) {
            if (k.name == kind) return (this->*k.text)(of);
            names.append(names.empty() ? "" : ", ").append(k.name);
        }
        return failure(errc::option, of.at.keys + "block", "is ", tiffin::detail::in_quotes(kind),
                       "; known are ", names);
    }
    template <result<std::string> Text(const block&)>
    result<std::string> plain(const block& of) {
        return Text(of);
    }

    // A mixture's experts, all of one kind.
    result<std::string> experts(const block& of) {
        auto prefix = detail::experts_prefix(of);
        if (!prefix) return prefix;
        return read({*prefix + "0.", of.at.keys + "expert."});
    }
    result<std::string> mixture(const block& of, const std::string& router) {
        auto expert = experts(of);
        if (!expert) return expert;
        if (!options_.has(of.at.keys + "shared.block") && !options_.has(of.at.keys + "shared.composition"))
            return detail::text_of("mixture(", router, ", ", *expert, ")");
        auto shared = read({of.at.tensors + "shared.", of.at.keys + "shared."});
        if (!shared) return shared;
        return detail::text_of("mixture(", router, ", ", *expert, ", ", *shared, ")");
    }
    result<std::string> moe(const block& of) {
        static constexpr auto orders = std::to_array<std::string_view>(
            {"softmax_topk", "softmax_topk_renorm", "topk_softmax", "sigmoid_topk_renorm"});
        std::string_view order = orders[0];
        std::size_t top_k = 1;
        if (status s = of.read("router_order", orders, order); !s) return s.failure();
        if (status s = of.read("top_k", top_k); !s) return s.failure();
        return mixture(of, detail::text_of(order, "(top_k=", top_k, ")"));
    }
    result<std::string> hash_moe(const block& of) {
        if (status s = detail::check_map(of); !s) return s.failure();
        return mixture(of, "hash");
    }

    result<std::string> base(const block& of) {
        return read({of.at.tensors + "base.", of.at.keys + "base."});
    }
    result<std::string> retoken(const block& of) {
        bool folded = false;
        std::string norm;
        if (status s = of.read("folded", folded); !s) return s.failure();
        if (status s = of.read_norm(norm); !s) return s.failure();
        auto inner = base(of);
        if (!inner) return inner;
        if (folded) return detail::text_of("modulated(", *inner, ", folded_modulator)");
        return detail::text_of("modulated(", *inner, ", token_modulator(", norm, "))");
    }
    // Without a pool and a router in the file, mixed rows are passed with each call.
    result<std::string> mort(const block& of) {
        std::string norm;
        std::size_t num_layers = 0, top_k = 2;
        const bool is_pool = of.has("modulators.weight") || of.has("router.weight");
        if (is_pool)
            if (status s = of.read("top_k", top_k); !s) return s.failure();
        if (status s = of.read_norm(norm); !s) return s.failure();
        if (status s = of.read_needed(
                "num_layers", "; it counts the layers of the backbone and has no default", num_layers);
            !s)
            return s.failure();
        auto inner = base(of);
        if (!inner) return inner;
        const std::string mixed =
            is_pool ? detail::text_of("modulator_pool(", norm, ", sigmoid_topk_renorm(top_k=", top_k, ")")
                    : detail::text_of("given_modulator(", norm);
        return detail::text_of("modulated(", *inner, ", ", mixed, ", num_layers=", num_layers, "), add)");
    }
    result<std::string> parallel(const block& of) {
        std::size_t count = 0;
        if (status s = of.read_needed("branches", "", count); !s) return s.failure();
        std::string all;
        for (std::size_t i = 0; i < count; ++i) {
            const std::string name = "branch." + std::to_string(i) + ".";
            auto branch = read({of.at.tensors + name, of.at.keys + name});
            if (!branch) return branch;
            all.append(all.empty() ? "" : ", ").append(*branch);
        }
        return detail::text_of("parallel(", all, ")");
    }

    layer_options& options_;
    const weights& given_;
    std::size_t depth_ = 0;
};

}  // namespace io
TIFFIN_END
