// All that a run is made of, as the command line and a checkpoint say it.
#pragma once

#include <tiffin/train/learning_rate.hpp>

#include "language_model.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

struct run_options {
    // The model.
    std::size_t d_model = 128, d_ff = 352, layers = 4, heads = 4, kv_heads = 2, context = 128,
                vocabulary = 2048;
    std::string ffn = "swiglu";  // of the layers that `where` names
    std::string where = "all";   // all, all-but-0, thirds, halves, or numbers: 1,3
    std::string elsewhere = "swiglu";
    std::size_t experts = 4, bank = 16, rank = 16, d_mem = 32;
    double scale = 1;  // a modulator's, at the start
    // The run.
    std::size_t batch = 16;  // sequences
    std::size_t steps = 1000;
    double rate = 3e-3, last = 0.1, warm_up = 0.05, decay = 0.1, clip = 1;
    std::string schedule = "cosine";
    double balance = 0.01, mort_balance = 1e-4, z_loss = 0;
    std::uint64_t seed = 1;

    // Calls visit(name, value) for each, by the name that it has on the command line.
    template <class Visit>
    void visit(const Visit& visit) {
        visit("d-model", d_model);
        visit("d-ff", d_ff);
        visit("layers", layers);
        visit("heads", heads);
        visit("kv-heads", kv_heads);
        visit("context", context);
        visit("vocabulary", vocabulary);
        visit("ffn", ffn);
        visit("where", where);
        visit("elsewhere", elsewhere);
        visit("experts", experts);
        visit("bank", bank);
        visit("rank", rank);
        visit("d-mem", d_mem);
        visit("scale", scale);
        visit("batch", batch);
        visit("steps", steps);
        visit("rate", rate);
        visit("last", last);
        visit("warm-up", warm_up);
        visit("decay", decay);
        visit("clip", clip);
        visit("schedule", schedule);
        visit("balance", balance);
        visit("mort-balance", mort_balance);
        visit("z-loss", z_loss);
        visit("seed", seed);
    }

    // Throws std::invalid_argument for what makes no model. `vocabulary`: of the tokenizer, which may have fewer ids.
    [[nodiscard]] model_sizes sizes(std::size_t vocabulary) const;
    [[nodiscard]] tiffin::learning_rate learning_rate() const;
    [[nodiscard]] std::map<std::string, std::string> as_texts() const;
    static run_options from_texts(const std::map<std::string, std::string>& texts);
};

// smoke: half a minute, a test; small: ten minutes; hour: one.
// Throws std::invalid_argument, naming those that there are.
run_options preset_of(const std::string& name);
