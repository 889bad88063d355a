// The feed-forward blocks that the model can have, by name. A kind of your own is one line in ffn_kinds.cpp.
#pragma once

#include <tiffin/analysis/cost.hpp>
#include <tiffin/analysis/initialise_block.hpp>
#include <tiffin/plan/tensors_needed.hpp>
#include <tiffin/train/simd.hpp>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
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

// A kind of block, compiled: what its composition says of itself.
struct ffn_kind {
    std::string name;
    std::function<std::map<std::string, std::string>(const ffn_sizes&)> options;  // of its layer file
    std::function<std::vector<tiffin::named_tensor>(const ffn_sizes&)> tensors;
    std::function<double(const ffn_sizes&)> flops;  // of its matrix products, forward, per token
    std::function<tiffin::status(const ffn_sizes&, const tiffin::named_memory<float>&,
                                 const tiffin::initial_values&, const std::string& prefix)>
        initialise;
    std::function<tiffin::trainable_layer<float>(const ffn_sizes&, const tiffin::weights&,
                                                 const tiffin::training_options<float>&)>
        prepare;
    bool reads_embedding = false;  // its `word_embed.weight` is the model's own token embedding
    std::size_t delay = 0;         // layers
    // Its router is balanced over sigmoids, as MoRT's paper has it; else over softmax, as Switch Transformer's.
    bool has_mort_balance = false;
};

using file_options = std::map<std::string, std::string>;

// make(sizes): the block; shaped(sizes, use): calls use(block_shape).
template <class Make, class Shaped>
ffn_kind kind_of(std::string name, const Make& make, const Shaped& shaped,
                 std::function<file_options(const ffn_sizes&)> options) {
    ffn_kind kind;
    kind.name = std::move(name);
    kind.options = std::move(options);
    kind.tensors = [=](const ffn_sizes& s) {
        std::vector<tiffin::named_tensor> all;
        shaped(s, [&](const tiffin::block_shape& shape) {
            for (auto& t : tiffin::tensors_needed(make(s), shape))
                if (t.tensor.needed == tiffin::presence::required) all.push_back(std::move(t));
        });
        return all;
    };
    kind.flops = [=](const ffn_sizes& s) {
        double flops = 0;
        shaped(s, [&](const tiffin::block_shape& shape) {
            flops = tiffin::cost(shape, make(s)).matrix_flops_per_token;
        });
        return flops;
    };
    kind.initialise = [=](const ffn_sizes& s, const tiffin::named_memory<float>& to,
                          const tiffin::initial_values& how, const std::string& prefix) {
        tiffin::status done;
        shaped(s, [&](const tiffin::block_shape& shape) {
            done = tiffin::initialise(make(s), shape, to, how, prefix);
        });
        return done;
    };
    kind.prepare = [=](const ffn_sizes& s, const tiffin::weights& weights,
                       const tiffin::training_options<float>& how) {
        return tiffin::prepare_training(make(s), weights, tiffin::simd<>{}, how);
    };
    return kind;
}

// All of them, in the order in which help texts name them.
const std::vector<ffn_kind>& ffn_kinds();
// Throws std::invalid_argument, naming those that there are.
const ffn_kind& ffn_kind_of(const std::string& name);

// Each in a source file of its own, so that they compile side by side.
std::vector<ffn_kind> dense_kinds();
std::vector<ffn_kind> routed_kinds();
std::vector<ffn_kind> modulated_kinds();
