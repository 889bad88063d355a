// A layer among those compared: made, held against the reference, and ready to be timed.
#pragma once

#include <tiffin/analysis/cost.hpp>
#include <tiffin/call/layer_of_any_block.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/plan/tensors_needed.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

struct shape {
    std::string name;
    std::size_t d_model = 0;
    std::size_t d_ff = 0;
};

// What calls of all layers write to, one after the other.
struct call_memory {
    tiffin::workspace workspace;
    std::vector<float> y;  // (batch, d_model)
};

// What is compared: the same for every layer.
struct job {
    tiffin::executor_ref execute;
    call_memory& memory;
    shape sizes = {};
    std::size_t vocab = 0;
    std::vector<std::int32_t> ids = {};  // of the tokens that run
    std::vector<float> x = {};           // (ids, d_model)
    bool tables_in_file = false;
    bool on_device = false;
};

// Of the calls of a layer: what is in the middle, and how far apart the quarters are.
struct rates {
    double per_second = 0;                // tokens, by the median time
    double low = 0, ratio = 0, high = 0;  // to the first layer, round by round: quartiles and the median
    bool busy = false;                    // whether others had the cores meanwhile
    [[nodiscard]] bool trusted() const { return !busy && high - low <= widest * ratio; }
    static constexpr double widest = 0.25;  // of the median
};

struct row {
    std::string name, composition;
    tiffin::block_cost cost;
    bool reads_ids = false;  // whether its rows are those of token ids
    std::size_t copies = 1;
    rates prefill, decode;
    double error = 0, allowed = 0;  // against the reference, relative to the largest output
};

// A layer ready to run: y of tokens [first, first + count) of the text.
struct contender {
    row result;
    std::function<void(std::size_t first, std::size_t count)> call;
    std::function<std::vector<std::int32_t>()> routes;  // the experts of every token; empty: nothing routes
    std::size_t experts = 0, choices = 0;
};

constexpr std::size_t batch = 512;

using report = std::function<void(double done, const std::string& what)>;

// Initialises the layer that a text names, or takes the weights given, packs it and holds it against the reference.
contender make_contender(const job& j, const std::string& name, const std::string& composition,
                         const tiffin::block_shape& sizes, const report& progress,
                         const tiffin::weights* weights = nullptr);

// What the layer that a text names costs. Throws where it names none.
tiffin::block_cost cost_of(const std::string& composition, const tiffin::block_shape& sizes);
