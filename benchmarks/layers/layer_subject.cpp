#include "layer_subject.hpp"

#include "support/stored_blocks.hpp"

#include <algorithm>
#include <cstring>

namespace tiffin_bench {
namespace {

// Memory of the layer's for a tensor's bytes.
float* take(given_layer& to, std::size_t bytes) {
    to.memory.emplace_back((bytes + sizeof(float) - 1) / sizeof(float));
    return to.memory.back().data();
}

}  // namespace

void add_noise(given_layer& to, const std::string& name, const tiffin::shape& sizes, std::uint32_t seed) {
    to.memory.push_back(random_numbers(sizes.elements(), seed));
    to.tensors.add(name, to.memory.back().data(), sizes);
}

// The experts of each id, those of one id different.
void add_noise_map(given_layer& to, const std::string& name, const tiffin::shape& sizes, std::size_t experts,
                   std::uint32_t seed) {
    const std::size_t choices = sizes.rank() > 1 ? sizes[1] : 1;
    auto* const map = reinterpret_cast<std::int32_t*>(take(to, sizes.elements() * sizeof(std::int32_t)));
    for (std::size_t i = 0; i < sizes.elements(); ++i) {
        seed = i % choices == 0 ? seed * 1664525u + 1013904223u : seed;
        map[i] = static_cast<std::int32_t>(((seed >> 16) + i % choices) % experts);
    }
    to.tensors.add(name, {map, tiffin::dtype::i32, sizes});
}

void add_noise_blocks(given_layer& to, const std::string& name, const tiffin::shape& sizes,
                      tiffin::dtype type, std::uint32_t seed) {
    const std::vector<unsigned char> blocks = tiffin_test::noise_blocks(type, sizes.elements(), seed);
    float* const memory = take(to, blocks.size());
    std::memcpy(memory, blocks.data(), blocks.size());
    to.tensors.add(name, {memory, type, sizes});
}

void keep_in_place(given_layer& given, const std::vector<std::string>& names) {
    const auto& entries = given.tensors.entries();
    for (std::size_t i = 0; i < entries.size(); ++i)
        if (std::ranges::find(names, entries[i].name) == names.end()) given.memory[i] = page_floats();
}

double bytes_of(const tiffin::number_formats& formats, tiffin::tensor_kind kind) {
    using enum tiffin::tensor_kind;
    const bool dense = kind == projection || kind == low_rank_in, rows = kind == table || kind == pool;
    const tiffin::dtype type = dense ? formats.weights.type : rows ? formats.tables.type : tiffin::dtype::f32;
    return static_cast<double>(size_of(type)) / static_cast<double>(block_of(type));
}

arithmetic arithmetic_of(const tiffin::number_formats& formats) {
    switch (formats.activations.type) {
        case tiffin::dtype::q8_0: return arithmetic::int8_dot;
        case tiffin::dtype::bf16: return arithmetic::bf16_dot;
        default: return arithmetic::f32;
    }
}

}  // namespace tiffin_bench
