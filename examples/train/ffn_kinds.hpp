// The feed-forward blocks that the model can have: by a name, or by the text of a composition.
#pragma once

#include <tiffin/analysis/cost.hpp>
#include <tiffin/analysis/initialise_block.hpp>
#include <tiffin/plan/composition.hpp>
#include <tiffin/plan/tensors_needed.hpp>
#include <tiffin/train/simd.hpp>

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

// What a block is made for.
struct ffn_sizes {
    std::size_t d_model = 0, d_ff = 0, vocabulary = 0;
    std::size_t layers = 0;   // of the model
    std::size_t experts = 4;  // of a mixture or a pool
    std::size_t bank = 16;    // low-rank experts of a StructMoE
    std::size_t rank = 16;    // of each
    std::size_t d_mem = 32;   // of a memory
};

// The sizes of a block, and of its parts where these have others.
struct block_sizes {
    tiffin::block_shape whole{};
    std::vector<tiffin::block_shape> parts{};

    // Valid as long as this.
    [[nodiscard]] tiffin::block_shape shape() const {
        tiffin::block_shape made = whole;
        if (!parts.empty()) made.parts = parts.data();
        return made;
    }
};

class ffn_kind {
public:
    using composition = tiffin::composition<tiffin::training<tiffin::simd<>>::machine>;

    std::string name;
    std::function<std::string(const ffn_sizes&)> text;
    std::function<block_sizes(const ffn_sizes&)> sizes;
    // Of its layer file, where that has a block of this kind, which fold_layer and compare_layers know; none: its text.
    std::function<std::map<std::string, std::string>(const ffn_sizes&)> options{};
    bool reads_embedding = false;  // its `word_embed.weight` is the model's own token embedding
    std::string runs_as{};         // the kind that it is when its tables are folded; empty: itself

    [[nodiscard]] composition composed(const ffn_sizes& s) const;
    [[nodiscard]] std::map<std::string, std::string> file_options(const ffn_sizes& s) const;
    [[nodiscard]] std::vector<tiffin::named_tensor> tensors(const ffn_sizes& s) const;
    // Of its matrix products, forward, per token: as it is trained, and as it runs, its tables folded.
    [[nodiscard]] double flops(const ffn_sizes& s) const;
    [[nodiscard]] double folded_flops(const ffn_sizes& s) const;
    // Layers that its results arrive later.
    [[nodiscard]] std::size_t delay(const ffn_sizes& s) const;
    // Its router is balanced over sigmoids, as MoRT's paper has it; else over softmax, as Switch Transformer's.
    [[nodiscard]] bool routes_by_sigmoids(const ffn_sizes& s) const;
    [[nodiscard]] tiffin::status initialise(const ffn_sizes& s, const tiffin::named_memory<float>& to,
                                            const tiffin::initial_values& how,
                                            const std::string& prefix) const;
    // Values `first` on of the tensor `name` alone.
    [[nodiscard]] tiffin::status initialise_part(const ffn_sizes& s, const std::string& name,
                                                 std::size_t first, std::span<float> to,
                                                 const tiffin::initial_values& how,
                                                 const std::string& prefix) const;
    // Throws std::invalid_argument for a block that reads what the model does not have.
    [[nodiscard]] tiffin::trainable_layer<float> prepare(const ffn_sizes& s, const tiffin::weights& weights,
                                                         const tiffin::training_options<float>& how,
                                                         bool bf16_products = false) const;
};

// All that have names, in the order in which help texts name them. One of your own is a line.
const std::vector<ffn_kind>& ffn_kinds();
// The kind of this name, or of this text.
// Throws std::invalid_argument, naming those that there are, and what is wrong with the text.
const ffn_kind& ffn_kind_of(const std::string& name_or_text);
