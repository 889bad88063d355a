// All that a run is made of, as the command line and a checkpoint say it.
#pragma once

#include <tiffin/learn/learning_rate.hpp>

#include "../support/number_range.hpp"
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
    double scale = 1;          // a modulator's, at the start
    std::string norm = "rms";  // or layer
    std::size_t untied_head = 0;
    std::string products = "f32";  // or bf16
    // The run.
    std::size_t batch = 16;  // sequences
    std::size_t steps = 1000;
    double rate = 3e-3, last = 0.1, warm_up = 0.05, decay = 0.1, clip = 1;
    std::string schedule = "cosine";
    std::size_t resting_rows_decay = 0;
    double balance = 0.01, mort_balance = 1e-4, z_loss = 0;
    std::uint64_t seed = 1;

    // Calls visit(name, value) for each text and visit(name, value, its range) for each number, by the name that it has
    // on the command line.
    template <class Visit>
    void visit(const Visit& visit) {
        constexpr number_range<std::size_t> counts{1, 4096}, tokens{1, 1 << 24}, many{1, 1'000'000'000};
        constexpr number_range<double> share{0, 1}, positive{0, 1e30}, any{-1e30, 1e30};
        visit("d-model", d_model, model_widths);
        visit("d-ff", d_ff, ffn_widths);
        visit("layers", layers, counts);
        visit("heads", heads, counts);
        visit("kv-heads", kv_heads, counts);
        visit("context", context, tokens);
        visit("vocabulary", vocabulary, number_range<std::size_t>{257, 1 << 24});
        visit("ffn", ffn);
        visit("where", where);
        visit("elsewhere", elsewhere);
        visit("experts", experts, counts);
        visit("bank", bank, ffn_widths);
        visit("rank", rank, ffn_widths);
        visit("d-mem", d_mem, ffn_widths);
        visit("scale", scale, any);
        visit("norm", norm);
        visit("untied-head", untied_head, number_range<std::size_t>{0, 1});
        visit("products", products);
        visit("batch", batch, tokens);
        visit("steps", steps, many);
        visit("rate", rate, positive);
        visit("last", last, share);
        visit("warm-up", warm_up, share);
        visit("decay", decay, positive);
        visit("resting-rows-decay", resting_rows_decay, number_range<std::size_t>{0, 1});
        visit("clip", clip, positive);
        visit("schedule", schedule);
        visit("balance", balance, positive);
        visit("mort-balance", mort_balance, positive);
        visit("z-loss", z_loss, positive);
        visit("seed", seed, seed_numbers);
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
