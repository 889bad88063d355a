#include "layer_subject.hpp"

#include "support/stored_blocks.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tiffin_bench {

page_floats noise_of(tiffin::dtype type, const tiffin::shape& sizes, std::size_t experts,
                     std::uint32_t seed) {
    const std::size_t count = sizes.elements();
    if (type == tiffin::dtype::f32) return random_numbers(count, seed);
    if (type == tiffin::dtype::i32) {
        // The experts of each id, those of one id different.
        const std::size_t choices = sizes.rank() > 1 ? sizes[1] : 1;
        page_floats memory(count);
        auto* const map = reinterpret_cast<std::int32_t*>(memory.data());
        for (std::size_t i = 0; i < count; ++i) {
            seed = i % choices == 0 ? seed * 1664525u + 1013904223u : seed;
            map[i] = static_cast<std::int32_t>(((seed >> 16) + i % choices) % experts);
        }
        return memory;
    }
    const std::vector<unsigned char> blocks = tiffin_test::noise_blocks(type, count, seed);
    page_floats memory((blocks.size() + sizeof(float) - 1) / sizeof(float));
    std::memcpy(memory.data(), blocks.data(), blocks.size());
    return memory;
}

page_floats ranges_of(std::size_t ids, std::size_t rows, std::size_t each) {
    page_floats memory(2 * ids);
    auto* const ranges = reinterpret_cast<std::int32_t*>(memory.data());
    for (std::size_t id = 0; id < ids; ++id) {
        const std::size_t begin = id * each % (rows - each + 1);
        ranges[2 * id] = static_cast<std::int32_t>(begin);
        ranges[2 * id + 1] = static_cast<std::int32_t>(begin + each);
    }
    return memory;
}

void keep_in_place(given_layer& given, const std::vector<std::string>& names, spare_tensors& spare) {
    const auto& entries = given.tensors.entries();
    for (std::size_t i = 0; i < entries.size(); ++i)
        if (std::ranges::find(names, entries[i].name) == names.end())
            spare.insert_or_assign(entries[i].name, std::exchange(given.memory[i], page_floats()));
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
