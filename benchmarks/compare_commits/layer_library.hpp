// What a library of layers shows to time_layers: the layers of one commit, without a type of tiffin's. The
// program has two such libraries in it, each with a tiffin of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tiffin_compare {

// Of a layer whose name does not tell.
inline constexpr std::size_t d_model = 1024;
inline constexpr std::size_t d_ff = 2816;
inline constexpr std::size_t widest_d_model = 2048;
inline constexpr std::size_t memory_width = 256;
inline constexpr std::size_t vocab = 4096;
inline constexpr std::size_t most_tokens = 512;

// Sets of weights of a layer, to rotate among: with three of each commit a call finds none of its weights in
// the cache of a core. (A last-level cache of hundreds of megabytes, shared with other machines, may hold all
// of them. Sets that it cannot hold would take gigabytes.)
inline constexpr std::size_t sets = 3;

// Runs n tasks on the program's threads: both libraries use the same ones.
struct executor {
    void* team;
    std::size_t threads;
    void (*execute)(void* team, std::size_t n, void (*task)(const void* object, std::size_t i),
                    const void* object);
};

struct layer_call {
    const float* x;                 // (tokens, d_model of the layer)
    const float* per_layer_input;   // (tokens, memory_width)
    const std::int32_t* token_ids;  // (tokens)
    std::size_t tokens;
    float* y;  // (tokens, d_model of the layer); of a step of training, the gradient of x
    const executor* execute;
};

extern "C" {

struct layer_library {
    const char* commit;
    std::size_t (*layers)();
    const char* (*name)(std::size_t layer);
    std::size_t (*d_model)(std::size_t layer);
    // A layer without its sets, and then one set after the other. These and run() print what is wrong, and
    // then give null or false.
    void* (*begin)(std::size_t layer);
    bool (*make_set)(void* layer, std::size_t set);
    bool (*run)(void* layer, std::size_t set, const layer_call* call);
    void (*end)(void* layer);
};

// The one symbol of a library that others see.
__attribute__((visibility("default"))) const layer_library* tiffin_layer_library();
using layer_library_function = const layer_library* (*)();
}

}  // namespace tiffin_compare
