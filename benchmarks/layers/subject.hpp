// What bench_layers measures: a block on one of several layers, by name.
#pragma once

#include <tiffin/executor/executor.hpp>

#include "../arithmetic.hpp"
#include "../machine.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace tiffin_bench {

struct shape {
    std::size_t d_model;
    std::size_t d_ff;
};
inline std::string name_of(const shape& s) {
    return std::to_string(s.d_model) + "x" + std::to_string(s.d_ff);
}

struct bench_options {
    int threads = 0;
    std::size_t layers = 0;  // to rotate among; 0 for as many as the last-level cache cannot hold
};
bench_options& options();

inline constexpr std::size_t vocab = 4096;
inline constexpr std::size_t most_tokens = 512;
inline constexpr std::size_t most_features = 16384;  // of a token's row

// What a benchmark calls: run(layer, x, ids, tokens, y, executor) on one of several layers. Peers have
// threads of their own.
struct subject {
    std::function<void(std::size_t, const float*, const std::int32_t*, std::size_t, float*,
                       const tiffin::executor_ref&)>
        run;
    std::function<void(std::size_t)> warm_up = [](std::size_t) {};  // for a number of tokens
    std::size_t layers = 0;
    double bytes = 0;
};

// What a call does at least.
struct work_per_call {
    double flops;
    double bytes;
};

// How a subject is made, which takes a while, and what is known of it before.
struct subject_maker {
    std::function<subject()> make;
    std::function<work_per_call(std::size_t tokens)> work;
    // Of the products with dense weights; the few of routers and outer halves of banks, which are in f32,
    // are counted in.
    arithmetic kind = arithmetic::f32;
};

// All subjects that were added, by name: layer/<name>/<backend>/<format>/<d>x<f> or peer/<library>/....
std::map<std::string, subject_maker>& subject_makers();

// The subject of this name. Those made so far are kept, so that repetitions can be interleaved; the least
// recently used go when together they would take more than half of the memory.
subject& subject_named(const std::string& name);

// How many layers of so many bytes to rotate among: as the layers of a model, they exceed the last-level cache
// together. A benchmark that reruns one layer measures the cache.
std::size_t layers_for(double dense_bytes);

// Numbers near those of a trained layer; their values do not change the time.
page_floats random_numbers(std::size_t count, std::uint32_t seed);

}  // namespace tiffin_bench
