#include "lab.hpp"

#include "../support/output.hpp"
#include "../support/progress_bar.hpp"

#include <tiffin/io/safetensors.hpp>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t asked = 0;

// What differs from the base, in words: stem-thirds-s1.
std::string name_of(const run_options& base, const run_options& options) {
    const auto usual = base.as_texts();
    std::string name = options.ffn + (options.where == "all" ? "" : "-" + options.where);
    for (const auto& [key, value] : options.as_texts())
        if (key != "ffn" && key != "where" && key != "seed" && usual.at(key) != value)
            name += "-" + key + value;
    return name + "-s" + std::to_string(options.seed);
}

std::vector<std::pair<double, double>> curve_in(const fs::path& log) {
    std::vector<std::pair<double, double>> curve;
    std::ifstream in(log);
    for (std::string line; std::getline(in, line);) {
        std::istringstream cells(line);
        double tokens = 0, loss = 0;
        char comma = 0;
        if (cells >> tokens >> comma >> loss) curve.emplace_back(tokens, loss);
    }
    return curve;
}

}  // namespace

bool is_asked_to_stop() {
    return asked != 0;
}
void stop_when_asked() {
    std::signal(SIGINT, [](int) { asked = 1; });
    std::signal(SIGTERM, [](int) { asked = 1; });
}

lab::lab(fs::path folder, run_options base, std::size_t seeds, std::size_t held_out, lab_text text,
         tiffin::executor_ref execute)
    : folder_(std::move(folder)),
      base_(std::move(base)),
      seeds_(seeds),
      held_out_(held_out),
      text_(std::move(text)),
      text_hash_(hash_of(text_.learnt)),
      execute_(execute) {}

const finished_run& lab::run(std::size_t seed, const std::function<void(run_options&)>& changed) {
    finished_run made;
    made.options = base_;
    changed(made.options);
    made.options.seed = seed;
    made.name = name_of(base_, made.options);
    if (const auto at = runs_.find(made.name); at != runs_.end()) return at->second;
    const fs::path folder = folder_ / "runs" / made.name;
    fs::create_directories(folder);
    made.checkpoint = folder / "checkpoint.safetensors";
    train(made, folder);
    return runs_.emplace(made.name, std::move(made)).first->second;
}

std::unique_ptr<training_run> lab::open(const finished_run& run) const {
    auto made = std::make_unique<training_run>(run.options, text_.tokenizer, execute_);
    made->load(run.checkpoint);
    return made;
}

void lab::train(finished_run& made, const fs::path& folder) {
    const fs::path log = folder / "held_out.csv";
    auto run = std::make_unique<training_run>(made.options, text_.tokenizer, execute_);
    if (fs::exists(made.checkpoint)) {
        const checkpoint_head head = read_head(made.checkpoint);
        if (head.text_hash != text_hash_)
            throw std::runtime_error(made.checkpoint.string() +
                                     ": learns from another text; name another --out");
        const auto asked_for = made.options.as_texts();
        for (const auto& [key, value] : head.options.as_texts())
            if (value != asked_for.at(key))
                throw std::runtime_error(made.checkpoint.string() + ": was trained with " + key + " " +
                                         value + ", not " + asked_for.at(key) + "; name another --out");
        run->load(made.checkpoint);
    }
    made.flops = run->model().flops(true);
    made.training_flops = run->model().flops();
    made.parameters = static_cast<double>(run->model().numbers().count());
    made.curve = curve_in(log);
    std::erase_if(made.curve, [&](const auto& point) {
        return point.first > static_cast<double>(run->steps_done() * run->tokens_per_step());
    });
    text_batches batches(text_.learnt, made.options.context, made.options.seed);
    const std::size_t every = std::max<std::size_t>(made.options.steps / 10, 1);
    // The curve first: what it has more than the checkpoint is left out when they are read.
    const auto save = [&] {
        std::ostringstream to;
        to.precision(17);
        for (const auto& [tokens, loss] : made.curve) to << tokens << ',' << loss << '\n';
        write_text(log, to.str());
        run->save(made.checkpoint, text_hash_);
    };
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t first = run->steps_done();
    progress_bar bar;
    while (run->steps_done() < made.options.steps) {
        const double loss = run->step(batches).prediction;
        const std::uint64_t done = run->steps_done();
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        char line[160];
        std::snprintf(
            line, sizeof line, "%s: loss %.3f, %.0f s left", made.name.c_str(), loss,
            seconds / static_cast<double>(done - first) * static_cast<double>(made.options.steps - done));
        bar.show(static_cast<double>(done) / static_cast<double>(made.options.steps), line);
        const bool last = done == made.options.steps;
        if (last || done % every == 0) {
            const double held_out = judge(*run);
            if (!std::isfinite(held_out))
                throw std::runtime_error(made.name + ": the held-out loss is " + std::to_string(held_out) +
                                         " behind step " + std::to_string(done));
            made.curve.emplace_back(static_cast<double>(done * run->tokens_per_step()), held_out);
            save();
        }
        if (is_asked_to_stop() && !last) {
            save();
            throw stopped{};
        }
    }
    made.loss = made.curve.empty() ? judge(*run) : made.curve.back().second;
    bar.clear();
    if (first < made.options.steps) {
        std::printf("  %-32s held-out loss %.4f\n", made.name.c_str(), made.loss);
        std::fflush(stdout);
    }
}
