// A layer file whose composition is one of those that are compared: trained weights beside initialised ones.
#pragma once

#include <tiffin/io/described_layer.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/plan/tensors_needed.hpp>

#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

// The block of a layer file.
struct block_of_file {
    std::string composition;
    tiffin::block_shape sizes;
    std::vector<tiffin::block_shape> parts = {};  // where these have others
};

// Throws where it is none that is compared.
inline block_of_file block_of(const tiffin::io::safetensors_file& file) {
    using namespace tiffin;
    using options = std::map<std::string, std::string>;
    options given = file.metadata();
    const std::string composition = io::composition_of({given, file.tensors(), nullptr}).or_throw();
    given.erase("format");
    given.erase("num_layers");
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
    if (given == options{{"block", "glu"}} || given == options{{"block", "mlp"}})
        return {composition, ffn_of("")};
    for (const char* const stem : {"stem", "stem_gate", "stem_hybrid"})
        if (given == options{{"block", stem}})
            return {composition, with_table("stem_embed.weight", 0, ffn_of(""))};
    if (given == options{{"block", "structmoe"}}) {
        block_shape sizes = ffn_of("");
        sizes.experts = size("lore_a.weight", 0);
        sizes.rank = size("lore_a.weight", 1);
        return {composition, sizes};
    }
    if (given == options{{"block", "retoken"}, {"base.block", "glu"}, {"folded", "true"}})
        return {composition, with_table("modulators.weight", 0, ffn_of("base."))};
    if (given == options{{"block", "mort"}, {"base.block", "glu"}}) {
        block_shape sizes = with_table("modulators.weight", 1, ffn_of("base."));
        sizes.experts = size("modulators.weight", 0);
        return {composition, sizes};
    }
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
        return {composition, whole, {dense, memory}};
    }
    std::string all;
    for (const auto& [key, value] : given) all += (all.empty() ? "" : ", ") + key + " " + value;
    throw std::runtime_error(
        file.label() + ": is a block of other options than those compared (" + all +
        "): glu, mlp, stem, stem_gate, stem_hybrid, structmoe, mort over glu, and folded "
        "(fold_layer does that) retoken over glu, or glu beside meki, all as their "
        "papers have them; run_layer runs every layer file");
}
