// Continues a prompt with a model that `train` made.
//
//     generate run/checkpoint.safetensors "The layer" --tokens 100
#include <tiffin/executor/thread_team.hpp>

#include <CLI/CLI.hpp>

#include "../support/command_line.hpp"
#include "training_run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

struct arguments {
    std::filesystem::path checkpoint;
    std::string prompt;
    std::size_t tokens = 100;
    double temperature = 0.8;
    std::uint64_t seed = 1;
    std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
};

// The likeliest token, or one drawn with the probabilities of the logits over the temperature.
std::int32_t pick(std::span<const float> logits, double temperature, tiffin::detail::counter_random& random) {
    for (const float z : logits)
        if (!std::isfinite(z)) throw std::runtime_error("the model gives logits that are not finite");
    const auto most = std::max_element(logits.begin(), logits.end());
    if (temperature <= 0) return static_cast<std::int32_t>(most - logits.begin());
    std::vector<double> sums;
    double sum = 0;
    for (const float z : logits)
        sums.push_back(sum += std::exp((static_cast<double>(z) - *most) / temperature));
    const double drawn = static_cast<double>(random.bits() >> 11) * 0x1p-53 * sum;
    const auto at = std::upper_bound(sums.begin(), sums.end(), drawn) - sums.begin();
    return static_cast<std::int32_t>(std::min<std::ptrdiff_t>(at, std::ssize(sums) - 1));
}

void generate(const arguments& args) {
    const checkpoint_head head = read_head(args.checkpoint);
    const byte_pairs tokenizer = byte_pairs::from(head.merges);
    tiffin::thread_team team(args.threads);
    training_run run(head.options, tokenizer, team);
    run.load(args.checkpoint);
    std::vector<std::int32_t> ids = tokenizer.encode(args.prompt);
    if (ids.empty()) ids.push_back(tokenizer.end());
    std::fputs(args.prompt.c_str(), stdout);
    tiffin::detail::counter_random random(args.seed);
    const std::size_t context = head.options.context;
    std::vector<double> milliseconds;  // of each token
    for (std::size_t i = 0; i < args.tokens; ++i) {
        const auto seen = std::span(std::as_const(ids)).last(std::min(ids.size(), context));
        const auto start = std::chrono::steady_clock::now();
        const std::int32_t next = pick(run.model().next(seen), args.temperature, random);
        milliseconds.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
        if (next == tokenizer.end()) break;
        ids.push_back(next);
        const std::string_view text = tokenizer.text(next);
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
    }
    std::fputs("\n", stdout);
    if (milliseconds.size() < 2) return;
    const auto middle = milliseconds.begin() + std::ssize(milliseconds) / 2;
    std::fprintf(stderr, "the first token of %zu after %.2f ms", milliseconds.size(), milliseconds[0]);
    std::nth_element(milliseconds.begin() + 1, middle, milliseconds.end());
    std::fprintf(stderr, ", then %.2f ms each (median); each computes the whole context anew\n", *middle);
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app("Continues a prompt with a model that `train` made.");
    app.add_option("checkpoint", args.checkpoint, "checkpoint.safetensors of a run")->required();
    const CLI::Option* const prompt = app.add_option("prompt", args.prompt, "text to go on from")->required();
    app.add_option("--tokens", args.tokens, "the most tokens to add")
        ->check(in_range<std::size_t>(1, 1 << 24))
        ->capture_default_str();
    app.add_option("--temperature", args.temperature, "0: always the likeliest token")
        ->check(in_range(temperatures))
        ->capture_default_str();
    app.add_option("--seed", args.seed, "of what is drawn")
        ->check(in_range(seed_numbers))
        ->capture_default_str();
    app.add_option("--threads", args.threads, "threads")
        ->check(in_range(thread_counts))
        ->capture_default_str();
    const auto run = [&]() -> std::string {
        generate(args);
        return {};
    };
    return run_command_line(app, "generate", argc, argv, run, prompt);
}
