// Weights of a layer that nobody has trained: random numbers of the size that initialised weights have.
#pragma once

#include <tiffin/tiffin.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

// Uniform numbers of a given standard deviation, from a counter: any part can be made by any thread.
inline float number(std::uint64_t seed, std::uint64_t i, float deviation) {
    std::uint64_t z = seed * 0x9E3779B97F4A7C15u + i * 0xD1B54A32D192ED03u;
    z = (z ^ (z >> 32)) * 0xBF58476D1CE4E5B9u;
    z ^= z >> 29;
    const auto unit = static_cast<float>(static_cast<std::uint32_t>(z)) * 0x1p-32f - 0.5f;
    return unit * 3.4641016f * deviation;
}

inline void fill(std::vector<float>& to, std::uint64_t seed, float deviation,
                 const tiffin::executor_ref& execute) {
    const std::size_t parts = std::max<std::size_t>(execute.concurrency(), 1);
    const auto part = [&](std::size_t p) {
        for (std::size_t i = to.size() * p / parts; i < to.size() * (p + 1) / parts; ++i)
            to[i] = number(seed, i, deviation);
    };
    execute(parts, tiffin::task_ref(part));
}

// The tensors of a block with initialised weights: SmallInit's 2 / (5 inputs) as the variance of dense
// weights, and table rows as large as the up-projection whose place they take.
struct initialised {
    std::vector<std::vector<float>> memory;  // of each tensor; of one of whole numbers there is none here
    std::list<std::vector<std::int32_t>> whole_numbers;
    std::vector<tiffin::tensor_kind> kinds;
    tiffin::weights tensors;
};

// SmallInit's 2 / (5 inputs) where inputs are multiplied, rows as large as what they stand for.
inline float variance_of(const tiffin::sized_tensor& t) {
    using enum tiffin::tensor_kind;
    switch (t.kind) {
        case projection:
        case logits:
        case low_rank_in:
        case low_rank_out:
        case query:
        case half_keys:
        case row_keys: return 0.4f / static_cast<float>(t.shape[t.shape.rank() - 1]);
        case table:
        case pool:
        case chosen_rows: return 0.4f;
        default: return 1.0f;
    }
}

// `choices` rows for each id, side by side as far as there are rows, then from the first again.
inline std::vector<std::int32_t> ranges_of(std::size_t vocab, const tiffin::block_shape& sizes) {
    std::vector<std::int32_t> made;
    for (std::size_t id = 0; id < vocab; ++id) {
        const std::size_t begin = id % (sizes.experts / sizes.choices) * sizes.choices;
        made.push_back(static_cast<std::int32_t>(begin));
        made.push_back(static_cast<std::int32_t>(begin + sizes.choices));
    }
    return made;
}

inline initialised initialise(const tiffin::plan_node& block, const tiffin::block_shape& sizes,
                              const tiffin::executor_ref& execute) {
    initialised made;
    std::uint64_t seed = 1;
    for (const auto& [name, t] : tiffin::tensors_needed(block, sizes)) {
        if (t.needed == tiffin::presence::optional) continue;
        const tiffin::tensor_kind kind = t.kind;
        made.kinds.push_back(kind);
        if (kind == tiffin::tensor_kind::row_ranges) {
            made.memory.emplace_back();
            const auto& ranges = made.whole_numbers.emplace_back(ranges_of(t.shape[0], sizes));
            made.tensors.add(name, {ranges.data(), tiffin::dtype::i32, t.shape});
            continue;
        }
        made.memory.emplace_back(t.shape.elements());
        fill(made.memory.back(), seed++, std::sqrt(variance_of(t)), execute);
        made.tensors.add(name, made.memory.back().data(), t.shape);
    }
    return made;
}

// The tensors of a model's layer, widened to f32.
inline initialised widened(const tiffin::weights& from) {
    initialised made;
    for (const auto& [name, tensor] : from.entries()) {
        made.memory.emplace_back(tensor.shape.elements());
        made.kinds.push_back(tiffin::tensor_kind::projection);  // or whatever has no rows
        tiffin::read_as_f32(tensor, 0, made.memory.back().size(), made.memory.back().data());
        made.tensors.add(name, made.memory.back().data(), tensor.shape);
    }
    return made;
}
