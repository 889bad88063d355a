// The layers of a library: what they are called, and how one is made with random weights.
#pragma once

#include <tiffin/tiffin.hpp>

#include "layer_library.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tiffin_compare {

// A layer of any block and any number format.
class any_set {
public:
    virtual ~any_set() = default;
    [[nodiscard]] virtual std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const = 0;
    virtual void run(tiffin::matrix_view<const float> x, const tiffin::token_inputs& inputs,
                     tiffin::matrix_view<float> y, std::span<std::byte> workspace,
                     const tiffin::executor_ref& execute) const = 0;
};

struct named_layer {
    std::string name;
    std::size_t d_model;
    std::function<std::unique_ptr<any_set>(std::uint32_t seed)> make;
};
using layer_list = std::vector<named_layer>;

void add_dense_layers(layer_list& list);
void add_routed_layers(layer_list& list);
void add_memory_layers(layer_list& list);
void add_layers_in_formats(layer_list& list);
void add_trained_layers(layer_list& list);

struct free_memory {
    void operator()(void* memory) const noexcept { std::free(memory); }
};

// Random tensors for a block, each on pages of its own.
class random_tensors {
public:
    template <class Block>
    random_tensors(const Block& block, const tiffin::block_shape& sizes, std::uint32_t seed) {
        // The name tells what a tensor is for, and what it holds: other commits may order them otherwise.
        for (const auto& [name, t] : tiffin::tensors_needed(block, sizes)) {
            if (name.ends_with("bias")) continue;  // optional
            state_ = seed;
            for (const char letter : name) state_ = state_ * 31 + static_cast<unsigned char>(letter);
            if (name.ends_with("hash_map"))
                add_map(name, t.shape, sizes);
            else
                add_numbers(name, t.shape);
        }
    }
    [[nodiscard]] const tiffin::weights& views() const noexcept { return views_; }
    // Frees all tensors but those that a layer goes on reading.
    void keep(const std::vector<std::string>& names) {
        std::erase_if(held_, [&](const held& h) { return std::ranges::find(names, h.name) == names.end(); });
    }

private:
    struct held {
        std::string name;
        std::unique_ptr<void, free_memory> memory;
    };

    void* take(const std::string& name, std::size_t bytes) {
        constexpr std::size_t page = 4096;
        void* const memory = std::aligned_alloc(page, (bytes + page - 1) / page * page);
        if (memory == nullptr) throw std::bad_alloc();
        held_.push_back({name, std::unique_ptr<void, free_memory>(memory)});
        return memory;
    }
    // The higher half of a linear congruential generator's 32 bits.
    std::uint32_t next() noexcept {
        state_ = state_ * 1664525u + 1013904223u;
        return state_ >> 16;
    }
    // Of the size of a trained layer's.
    void add_numbers(const std::string& name, const tiffin::shape& shape) {
        auto* const numbers = static_cast<float*>(take(name, shape.elements() * sizeof(float)));
        for (std::size_t i = 0; i < shape.elements(); ++i)
            numbers[i] = (static_cast<float>(next()) / 65536.0f - 0.5f) * 0.05f;
        views_.add(name, numbers, shape);
    }
    // Experts of each id, all of one id different.
    void add_map(const std::string& name, const tiffin::shape& shape, const tiffin::block_shape& sizes) {
        auto* const map = static_cast<std::int32_t*>(take(name, shape.elements() * sizeof(std::int32_t)));
        for (std::size_t i = 0; i < shape.elements(); i += sizes.choices) {
            const std::size_t first = next();
            for (std::size_t c = 0; c < sizes.choices; ++c)
                map[i + c] = static_cast<std::int32_t>((first + c) % sizes.experts);
        }
        views_.add(name, {map, tiffin::dtype::i32, shape});
    }

    std::uint32_t state_ = 0;
    std::vector<held> held_;
    tiffin::weights views_;
};

template <class Block, class Backend>
class prepared_set final : public any_set {
public:
    prepared_set(const Block& block, const tiffin::block_shape& sizes, const Backend& backend,
                 std::uint32_t seed)
        : tensors_(block, sizes, seed),
          layer_(tiffin::prepare(block, tensors_.views(), backend, {.tokens = 0})) {
        tensors_.keep(layer_.reads_in_place());
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const override {
        return layer_.workspace_bytes(tokens, workers);
    }
    void run(tiffin::matrix_view<const float> x, const tiffin::token_inputs& inputs,
             tiffin::matrix_view<float> y, std::span<std::byte> workspace,
             const tiffin::executor_ref& execute) const override {
        layer_(x, inputs, y, workspace, execute);
    }

private:
    random_tensors tensors_;
    tiffin::layer<Block, Backend> layer_;
};

inline constexpr tiffin::block_shape dense_sizes{.d_model = d_model, .d_ff = d_ff, .vocab = vocab};
inline constexpr tiffin::block_shape memory_sizes{
    .d_model = d_model, .d_ff = memory_width, .vocab = vocab, .inner = {d_model, d_model / 2}};

template <class Backend = tiffin::simd<>, class Block>
void add(layer_list& list, std::string name, const Block& block,
         const tiffin::block_shape& sizes = dense_sizes) {
    list.push_back({std::move(name), sizes.d_model, [=](std::uint32_t seed) {
                        return std::make_unique<prepared_set<Block, Backend>>(block, sizes, Backend{}, seed);
                    }});
}
// A published layer's sizes, a large and a small one's, which the layer's name tells then.
inline constexpr tiffin::block_shape large_sizes{.d_model = widest_d_model, .d_ff = 8192, .vocab = vocab};
inline constexpr tiffin::block_shape small_sizes{.d_model = 576, .d_ff = 1536, .vocab = vocab};

// Tells MoRT's pool, or the block that holds it, the layers of the backbone.
template <class Pool>
void tell_layers(Pool& pool) {
    if constexpr (requires { pool.num_layers; })
        pool.num_layers = 28;
    else
        tell_layers(pool.source);
}
template <class Block>
tiffin::mort<Block> told_mort() {
    tiffin::mort<Block> block;
    tell_layers(block.modulator);
    return block;
}

}  // namespace tiffin_compare
