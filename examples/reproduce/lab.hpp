// Runs that claims are made of: each is trained once, kept, and shared by all claims that want the same.
#pragma once

#include "training_run.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

// The text of all runs, as tokens.
struct lab_text {
    byte_pairs tokenizer;
    std::vector<std::int32_t> learnt, held_out;
};

struct finished_run {
    std::string name;
    run_options options;
    std::filesystem::path checkpoint;
    double loss = 0;                               // held out, nats per token, at the end
    double flops = 0;                              // forward, per token, as it runs: tables folded
    double training_flops = 0;                     // the same as it is trained
    double parameters = 0;                         // numbers that learn
    std::vector<std::pair<double, double>> curve;  // tokens, held-out loss
};

class lab {
public:
    // `base`: what all runs have in common. Runs lie in `folder`/runs.
    // `held_out`: tokens of the held-out text that a look takes.
    lab(std::filesystem::path folder, run_options base, std::size_t seeds, std::size_t held_out,
        lab_text text, tiffin::executor_ref execute);

    [[nodiscard]] const run_options& base() const { return base_; }
    [[nodiscard]] std::size_t seeds() const { return seeds_; }
    [[nodiscard]] const lab_text& text() const { return text_; }
    [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
    [[nodiscard]] tiffin::executor_ref execute() const { return execute_; }

    // Trains what `changed` makes of the base with this seed, goes on with it where it was stopped, or reads how it
    // ended. The order of the text depends on the seed alone.
    const finished_run& run(std::size_t seed, const std::function<void(run_options&)>& changed);
    // The model of a run that has ended.
    [[nodiscard]] std::unique_ptr<training_run> open(const finished_run& run) const;
    // Nats per token over the held-out text.
    [[nodiscard]] double judge(training_run& run) const { return run.judge(text_.held_out, held_out_); }

    [[nodiscard]] std::size_t held_out() const { return held_out_; }

private:
    void train(finished_run& run, const std::filesystem::path& folder);

    std::filesystem::path folder_;
    run_options base_;
    std::size_t seeds_, held_out_;
    lab_text text_;
    std::uint64_t text_hash_;
    tiffin::executor_ref execute_;
    std::map<std::string, finished_run> runs_;
};

// Thrown where the user asked to stop: what has been trained is kept.
struct stopped {};
// Set by the signal of ctrl-C.
bool is_asked_to_stop();
void stop_when_asked();
