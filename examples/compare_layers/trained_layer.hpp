// A layer file whose composition is one of those that are compared: trained weights beside initialised ones.
#pragma once

#include <tiffin/io/safetensors.hpp>
#include <tiffin/layers.hpp>

#include <charconv>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

// Calls use_block(block, its sizes, its composition, the sizes of its parts where these differ) for the block of a layer file.
// Throws where it is none that is compared.
template <class Use>
void with_block_of(const tiffin::io::safetensors_file& file, const Use& use_block) {
    using namespace tiffin;
    using options = std::map<std::string, std::string>;
    const auto use = [&](const auto& block, const block_shape& sizes, const char* composition,
                         const std::vector<block_shape>& parts = {}) {
        use_block(block, sizes, composition, parts);
    };
    options given = file.metadata();
    given.erase("format");
    const auto size = [&](const std::string& tensor, std::size_t axis) {
        const tensor_view* const t = file.tensors().find(tensor);
        if (t == nullptr || t->shape.rank() <= axis)
            throw std::runtime_error(file.label() + ": has no tensor " + tensor + " of " +
                                     std::to_string(axis + 1) + " axes or more");
        return t->shape[axis];
    };
    // Of an ffn whose tensors have this prefix.
    const auto ffn_of = [&](const std::string& prefix) {
        const std::string down = prefix + "down_proj.weight";
        return block_shape{.d_model = size(down, 0), .d_ff = size(down, 1)};
    };
    const auto with_table = [&](const char* table, std::size_t axis, block_shape sizes) {
        sizes.vocab = size(table, axis);
        return sizes;
    };
    const std::string kind = given["block"];
    if (given == options{{"block", "glu"}}) return use(swiglu{}, ffn_of(""), "ffn<gate<silu>, dense>");
    if (given == options{{"block", "mlp"}}) return use(mlp{}, ffn_of(""), "ffn<gate<gelu>, none>");
    if (given == options{{"block", "stem"}})
        return use(stem{}, with_table("stem_embed.weight", 0, ffn_of("")),
                   "ffn<gate<silu>, token_embedding>");
    if (given == options{{"block", "stem_gate"}})
        return use(stem_gate{}, with_table("stem_embed.weight", 0, ffn_of("")),
                   "ffn<gate<silu, token_embedding>, dense>");
    if (given == options{{"block", "stem_hybrid"}})
        return use(stem_hybrid{}, with_table("stem_embed.weight", 0, ffn_of("")),
                   "ffn<gate<silu>, sum<dense, token_embedding>>");
    if (given == options{{"block", "structmoe"}}) {
        block_shape sizes = ffn_of("");
        sizes.experts = size("lore_a.weight", 0);
        sizes.rank = size("lore_a.weight", 1);
        return use(structmoe{}, sizes, "ffn<gate<gelu, sum<dense, routed_low_rank<>>>, none>");
    }
    if (given == options{{"block", "retoken"}, {"base.block", "glu"}, {"folded", "true"}})
        return use(retoken_folded<swiglu>{}, with_table("modulators.weight", 0, ffn_of("base.")),
                   "modulated<swiglu, folded_modulator, multiply>");
    const std::string layers = given["num_layers"];
    if (given == options{{"block", "mort"}, {"base.block", "glu"}, {"num_layers", layers}}) {
        mort<swiglu> block;
        const auto [rest, bad] =
            std::from_chars(layers.data(), layers.data() + layers.size(), block.modulator.num_layers);
        if (bad != std::errc() || rest != layers.data() + layers.size() || block.modulator.num_layers == 0)
            throw std::runtime_error(file.label() + ": num_layers is '" + layers +
                                     "'; it must be a whole number from 1 up");
        block_shape sizes = with_table("modulators.weight", 1, ffn_of("base."));
        sizes.experts = size("modulators.weight", 0);
        return use(block, sizes, "modulated<swiglu, modulator_pool<>, add>");
    }
    given.erase("num_layers");
    if (given == options{{"block", "parallel"},
                         {"branches", "2"},
                         {"branch.0.block", "glu"},
                         {"branch.1.block", "meki"},
                         {"branch.1.folded", "true"}}) {
        const block_shape dense = ffn_of("branch.0.");
        const block_shape memory{.d_model = dense.d_model,
                                 .d_ff = size("branch.1.memory.weight", 1),
                                 .vocab = size("branch.1.memory.weight", 0)};
        block_shape whole = dense;
        whole.vocab = memory.vocab;
        return use(parallel<swiglu, meki>{}, whole, "parallel<swiglu, meki>", {dense, memory});
    }
    std::string all;
    for (const auto& [key, value] : given) all += (all.empty() ? "" : ", ") + key + " " + value;
    throw std::runtime_error(
        file.label() + ": is a block of other options than those compared (" + all +
        "): glu, mlp, stem, stem_gate, stem_hybrid, structmoe, mort over glu, and folded "
        "(fold_layer does that) retoken over glu, or glu beside meki, all as their "
        "papers have them; run_layer runs every layer file");
}
