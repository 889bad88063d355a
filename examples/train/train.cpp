// Trains a small language model from text: any block of the grammar as its FFN, on one machine or on the ranks of mpirun.
//
//     train --preset smoke
//     train --ffn stem --where thirds --text ~/notes --out run && generate run/checkpoint.safetensors "The"
//     mpirun -n 2 train --ffn stem --embedding-parallel      tables in blocks of rows, one at each rank
#include <tiffin/executor/thread_team.hpp>

#include <CLI/CLI.hpp>

#include "../support/command_line.hpp"
#include "../support/output.hpp"
#include "../support/progress_bar.hpp"
#include "corpus.hpp"
#include "export_model.hpp"
#include "mpi_ranks.hpp"
#include "training_run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <set>
#include <string_view>
#include <thread>

namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t asked_to_stop = 0;
void ask_to_stop(int) {
    asked_to_stop = 1;
}

struct arguments {
    std::string preset = "small";
    std::vector<fs::path> text;
    fs::path out;
    bool resume = false, embedding_parallel = false;
    std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
    std::size_t save_every = 200, judge_every = 100, held_out_tokens = 65536, stop = 0;
    double held_out = 0.05;
    run_options run;
    std::set<std::string> said;  // those of `run` that the command line names
};

// The text as tokens, to learn from and to be judged by.
struct tokenized {
    byte_pairs tokenizer;
    std::vector<std::int32_t> learnt, held_out;
};

std::vector<std::int32_t> encoded(const std::vector<document>& documents, const byte_pairs& tokenizer,
                                  const char* what) {
    std::vector<std::int32_t> all;
    progress_bar bar;
    for (std::size_t i = 0; i < documents.size(); ++i) {
        bar.show(static_cast<double>(i) / static_cast<double>(documents.size()), what);
        const auto some = tokenizer.encode(documents[i].text);
        all.insert(all.end(), some.begin(), some.end());
        all.push_back(tokenizer.end());
    }
    return all;
}

tokenized read_text(const arguments& args, const std::vector<std::int32_t>* merges) {
    std::vector<fs::path> from = args.text;
    // The project's own text, which is small and the same wherever this program is built; else the machine's too.
    if (from.empty()) {
        if (args.preset != "smoke") from = usual_places();
        for (const char* part : {"docs", "include", "README.md"})
            from.push_back(fs::path(TIFFIN_SOURCE_DIR) / part);
    }
    progress_bar bar;
    const auto shown = [&](const char* what) {
        return [&bar, what](std::size_t done, std::size_t of) {
            bar.show(of != 0 ? static_cast<double>(done) / static_cast<double>(of) : 0, what);
        };
    };
    const corpus read = read_corpus(from, shown("reading"));
    const split_corpus parts = split(read.documents, args.held_out);
    std::size_t bytes = 0;
    std::vector<std::string_view> views;
    for (const document& d : parts.learnt) {
        views.push_back(d.text);
        bytes += d.text.size();
    }
    std::printf(
        "text: %zu documents of %zu files, %.1f MB; %zu held out; left out: %zu files that are no text, %zu "
        "documents and %zu paragraphs that were there before\n",
        read.documents.size(), read.counts.files, static_cast<double>(read.counts.bytes) / 1e6,
        parts.held_out.size(), read.counts.skipped + read.counts.too_short, read.counts.duplicates,
        read.counts.paragraphs_dropped);
    tokenized made{merges != nullptr
                       ? byte_pairs::from(*merges)
                       : byte_pairs::learn(views, args.run.vocabulary, shown("learning a tokenizer")),
                   {},
                   {}};
    made.learnt = encoded(parts.learnt, made.tokenizer, "to tokens");
    made.held_out = encoded(parts.held_out, made.tokenizer, "to tokens");
    std::printf("tokens: %zu ids, %zu to learn from (%.2f bytes per token), %zu held out\n",
                made.tokenizer.size(), made.learnt.size(),
                static_cast<double>(bytes) / static_cast<double>(made.learnt.size()), made.held_out.size());
    return made;
}

std::string time_of(double seconds) {
    char text[32];
    if (seconds < 90)
        std::snprintf(text, sizeof text, "%.0f s", seconds);
    else
        std::snprintf(text, sizeof text, "%.0f min", seconds / 60);
    return text;
}

// The rows of log.csv up to a step, so that a run that goes on has each once.
void keep_log(const fs::path& path, std::uint64_t steps) {
    std::ifstream old(path);
    std::string kept, line;
    for (bool first = true; std::getline(old, line); first = false)
        if (first || std::strtoull(line.c_str(), nullptr, 10) <= steps) kept += line + "\n";
    old.close();
    if (kept.empty()) kept = "step,tokens,loss,router_loss,gradient_norm,rate,held_out\n";
    write_text(path, kept);
}

// All that ranks must have in common, a line each.
std::string common_text(const arguments& args, std::uint64_t step, std::uint64_t text_hash) {
    std::string text;
    for (const auto& [key, value] : args.run.as_texts()) text += "--" + key + " " + value + "\n";
    for (const auto& [key, value] : {std::pair<const char*, std::uint64_t>{"--stop ", args.stop},
                                     {"--save-every ", args.save_every},
                                     {"--judge-every ", args.judge_every},
                                     {"--held-out-tokens ", args.held_out_tokens},
                                     {"--out (0: none) ", args.out.empty() ? 0 : 1},
                                     {"a checkpoint of step ", step},
                                     {"a text whose tokens hash to ", text_hash}})
        text += key + std::to_string(value) + "\n";
    return text;
}

// `ranks`: null on one machine. The first rank alone writes.
void train(const arguments& given, training_ranks* ranks) {
    arguments args = given;
    const bool writes = ranks == nullptr || ranks->rank() == 0;
    const fs::path checkpoint = args.out / "checkpoint.safetensors";
    std::optional<checkpoint_head> before;
    if (args.resume) {
        before = read_head(checkpoint);
        // What the command line names is what the checkpoint says too, but for the length of the run.
        const auto its = before->options.as_texts();
        for (const auto& [key, value] : args.run.as_texts())
            if (key != "steps" && args.said.contains(key) && value != its.at(key))
                throw std::invalid_argument("--" + key + " " + value + " with --resume: " +
                                            checkpoint.string() + " began with " + its.at(key));
        args.run = before->options;
        if (args.said.contains("steps")) args.run.steps = given.run.steps;
        if (args.run.steps < before->step)
            throw std::invalid_argument("--steps " + std::to_string(args.run.steps) + " with --resume: " +
                                        checkpoint.string() + " has done " + std::to_string(before->step));
    } else if (!args.out.empty() && fs::exists(checkpoint)) {
        throw std::invalid_argument(checkpoint.string() +
                                    " is there: go on with --resume, or name another --out");
    }
    static_cast<void>(args.run.sizes(1));  // what is wrong is told before the text is read
    static_cast<void>(args.run.learning_rate());
    tokenized text = read_text(args, before ? &before->merges : nullptr);
    const std::uint64_t hash = hash_of(text.learnt);
    if (before && before->text_hash != hash)
        throw std::runtime_error(checkpoint.string() + ": began with another text (its tokens hash to " +
                                 std::to_string(before->text_hash) + ", these to " + std::to_string(hash) +
                                 ")");
    text_batches batches(std::move(text.learnt), args.run.context, args.run.seed);
    if (ranks != nullptr) ranks->check_same(common_text(args, before ? before->step : 0, hash));

    tiffin::thread_team team(args.threads);
    training_run run(args.run, text.tokenizer, team, ranks);
    if (before) run.load(checkpoint);
    std::string kinds;
    for (const std::string& kind : args.run.sizes(1).kinds) kinds += (kinds.empty() ? "" : ", ") + kind;
    std::printf("model: %.2f million parameters, %.2f MFLOPs per token forward; FFNs: %s\n",
                static_cast<double>(run.model().count()) / 1e6, run.model().flops() / 1e6, kinds.c_str());
    if (ranks != nullptr) {
        std::size_t own = 0;
        for (const auto& block : run.model().blocks()) own += block->values.size();
        std::printf("ranks: %d; of %zu tables, %.2f million parameters lie at each\n", ranks->count(),
                    run.model().blocks().size(), static_cast<double>(own) / 1e6);
    }
    std::printf(
        "run: %zu steps of %zu tokens, %.1f times the text; seed %llu\n\n", args.run.steps,
        run.tokens_per_step(),
        static_cast<double>(args.run.steps * args.run.batch) / static_cast<double>(batches.sequences()),
        static_cast<unsigned long long>(args.run.seed));
    if (before && before->options.steps != args.run.steps)
        std::printf(
            "run: %zu steps in place of %zu; behind step %llu the learning rate is that of a run of %zu "
            "steps: %g after %g\n\n",
            args.run.steps, before->options.steps, static_cast<unsigned long long>(before->step),
            args.run.steps, args.run.learning_rate().at(before->step),
            before->step > 0 ? before->options.learning_rate().at(before->step - 1) : 0.0);

    std::ofstream log;
    if (!args.out.empty() && writes) {
        fs::create_directories(args.out);
        keep_log(args.out / "log.csv", run.steps_done());
        log = append_to(args.out / "log.csv");
    }
    std::signal(SIGINT, ask_to_stop);
    std::signal(SIGTERM, ask_to_stop);
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t first = run.steps_done();
    double recent = 0;  // the mean loss since it was last told
    std::uint64_t counted = 0;
    progress_bar bar;
    std::printf("%10s %12s %10s %10s %12s\n", "step", "tokens", "loss", "held out", "tokens/s");
    const auto save = [&] {
        if (!args.out.empty()) run.save(checkpoint, hash);
    };
    const std::size_t stop = args.stop == 0 ? args.run.steps : std::min(args.stop, args.run.steps);
    const auto is_asked_to_stop = [&] {  // any rank
        double asked = asked_to_stop;
        if (ranks != nullptr) ranks->add_up({&asked, 1});
        return asked != 0;
    };
    while (run.steps_done() < stop && !is_asked_to_stop()) {
        const step_losses losses = run.step(batches);
        const std::uint64_t done = run.steps_done();
        recent += losses.prediction;
        ++counted;
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        const double speed = static_cast<double>((done - first) * run.tokens_per_step()) / seconds;
        const bool last = done == stop, judged = last || done % args.judge_every == 0;
        const double held_out = judged ? run.judge(text.held_out, args.held_out_tokens) : 0;
        if (!std::isfinite(held_out))
            throw std::runtime_error("the held-out loss is not finite behind step " + std::to_string(done) +
                                     ": " + std::to_string(held_out) +
                                     "; the last checkpoint stays as it is");
        char line[160];
        std::snprintf(
            line, sizeof line, "step %llu of %zu, loss %.3f, %.0f tokens/s, %s left",
            static_cast<unsigned long long>(done), args.run.steps, recent / static_cast<double>(counted),
            speed,
            time_of(seconds / static_cast<double>(done - first) * static_cast<double>(stop - done)).c_str());
        bar.show(static_cast<double>(done) / static_cast<double>(args.run.steps), line);
        if (log.is_open()) {
            log << done << ',' << done * run.tokens_per_step() << ',' << losses.prediction << ','
                << losses.router << ',' << run.gradient_norm() << ',' << args.run.learning_rate().at(done - 1)
                << ',';
            if (judged) log << held_out;
            log << std::endl;
            if (!log) throw std::runtime_error((args.out / "log.csv").string() + " cannot be written");
        }
        if (judged) {
            bar.clear();
            std::printf("%10llu %12llu %10.4f %10.4f %12.0f\n", static_cast<unsigned long long>(done),
                        static_cast<unsigned long long>(done * run.tokens_per_step()),
                        recent / static_cast<double>(counted), held_out, speed);
            std::fflush(stdout);
            recent = 0;
            counted = 0;
        }
        if (last || done % args.save_every == 0) save();
    }
    bar.clear();
    if (ranks != nullptr && !run.model().blocks().empty() && run.steps_done() > first) {
        double rows = 0, bytes = 0;
        for (const auto& block : run.model().blocks()) {
            rows += static_cast<double>(block->rows_fetched());
            bytes += static_cast<double>(block->rows_fetched() * block->width() * sizeof(float));
        }
        std::printf("rows fetched by this rank: %.0f, %.1f MB, judging included\n", rows, bytes / 1e6);
    }
    if (run.steps_done() < args.run.steps) {
        save();
        std::printf("stopped after step %llu%s\n", static_cast<unsigned long long>(run.steps_done()),
                    args.out.empty() ? "; without --out nothing is kept" : "; go on with --resume");
        return;
    }
    if (args.out.empty() || !writes) return;
    if (run.model().blocks().empty()) {
        export_model(run.model(), args.out);
    } else {  // whole tables, which no rank has had until now
        training_run whole(args.run, text.tokenizer, team);
        whole.load(checkpoint);
        export_model(whole.model(), args.out);
    }
    std::printf(
        "\nwritten to %s: checkpoint.safetensors, log.csv, model.safetensors, layer.<i>.safetensors\n",
        args.out.string().c_str());
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app("Trains a small language model from text, any block of the grammar as its FFN.");
    try {
        // The preset first: what else is said changes it.
        for (int i = 1; i < argc; ++i) {
            const std::string_view one = argv[i];
            if (one == "--preset" && i + 1 < argc) args.preset = argv[i + 1];
            if (one.starts_with("--preset=")) args.preset = one.substr(9);
        }
        args.run = preset_of(args.preset);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "train: --preset: %s\n", e.what());
        return 1;
    }
    std::string kinds;
    for (const ffn_kind& kind : ffn_kinds()) kinds += kind.name + ", ";
    const std::map<std::string, std::string> help{
        {"d-model", "width of the model"},
        {"d-ff", "width of a block's hidden values"},
        {"layers", "layers of attention and an FFN"},
        {"heads", "heads of attention"},
        {"kv-heads", "heads of keys and values, which those share"},
        {"context", "tokens per sequence"},
        {"vocabulary", "token ids, learnt from the text by byte-pair encoding"},
        {"ffn", "block of the layers that --where names: " + kinds +
                    "none, or a composition as text (docs/layers.md)"},
        {"where", "all, all-but-0, thirds, halves, or numbers: 1,3"},
        {"elsewhere", "block of the other layers"},
        {"experts", "experts of a mixture, or of a pool of modulators"},
        {"bank", "low-rank experts of structmoe"},
        {"rank", "rank of each"},
        {"d-mem", "width of a memory (meki)"},
        {"scale", "scale of a modulator (retoken, mort) at the start"},
        {"norm", "rms, or layer: LayerNorm, with an offset"},
        {"untied-head", "1: the head has a matrix of its own"},
        {"products", "f32, or bf16: factors of products with weights are rounded to it, sums are in f32"},
        {"batch", "sequences per step"},
        {"steps", "steps"},
        {"rate", "learning rate at its peak"},
        {"last", "its share at the end"},
        {"warm-up", "share of the steps in which it rises"},
        {"decay", "weight decay"},
        {"resting-rows-decay",
         "1: rows of tables decay in every step, and not in those alone that read them"},
        {"clip", "the most that the norm of the gradient may be"},
        {"schedule", "cosine, linear, constant"},
        {"balance", "weight of the balance loss of routers"},
        {"mort-balance", "the same, MoRT's form"},
        {"z-loss", "weight of the z-loss of routers"},
        {"seed", "of the weights and of the order of the text"}};
    app.add_option("--preset", args.preset, "smoke (half a minute, on this project's own text), small, hour")
        ->capture_default_str();
    app.add_option("--text", args.text, "files and folders; default: what documents this machine has");
    app.add_option("--out", args.out,
                   "folder for checkpoints, the log and the layers; default: none are kept");
    app.add_flag("--resume", args.resume, "go on from the checkpoint in --out");
    app.add_flag("--embedding-parallel", args.embedding_parallel,
                 "with mpirun: each rank has a block of the rows of every table, and a part of each batch");
    const CLI::Option* const threads = app.add_option("--threads", args.threads, "threads, of each rank")
                                           ->capture_default_str()
                                           ->take_last()
                                           ->check(in_range(thread_counts));
    app.add_option("--save-every", args.save_every, "steps between checkpoints")
        ->capture_default_str()
        ->take_last()
        ->check(in_range<std::size_t>(1, 1'000'000'000));
    app.add_option("--stop", args.stop,
                   "step behind which it stops, to go on with --resume; the learning rate is that of --steps")
        ->take_last()
        ->check(in_range<std::size_t>(1, 1'000'000'000));
    app.add_option("--judge-every", args.judge_every, "steps between looks at the held-out text")
        ->capture_default_str()
        ->check(in_range<std::size_t>(1, 1'000'000'000));
    app.add_option("--held-out", args.held_out, "share of the documents that is held out")
        ->capture_default_str()
        ->check(in_range(0.0, 1.0));
    app.add_option("--held-out-tokens", args.held_out_tokens, "tokens of it that a look takes")
        ->capture_default_str()
        ->check(in_range<std::size_t>(1, 1 << 30));
    std::map<std::string, const CLI::Option*> options_of_run;
    args.run.visit([&](const char* name, auto& value, const auto&... range) {
        CLI::Option* const option = app.add_option(std::string("--") + name, value, help.at(name))
                                        ->capture_default_str()
                                        ->take_last()
                                        ->group("Run");
        (option->check(in_range(range)), ...);
        options_of_run.emplace(name, option);
    });
    return run_command_line(app, "train", argc, argv, [&]() -> std::string {
        for (const auto& [name, option] : options_of_run)
            if (option->count() > 0) args.said.insert(name);
        if (args.resume && args.out.empty()) return "--resume: name the folder with --out";
        if (!args.embedding_parallel) {
            train(args, nullptr);
            return {};
        }
        if (args.run.resting_rows_decay != 0)
            return "--resting-rows-decay 1 with --embedding-parallel: rows at ranks are passed over where "
                   "they rest";
        const auto ranks = ranks_of_mpi(argc, argv);
        if (threads->count() == 0)
            args.threads = std::max<std::size_t>(args.threads / static_cast<std::size_t>(ranks->count()), 1);
        // The first rank speaks for all.
        if (ranks->rank() != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) return "no /dev/null";
        try {
            train(args, ranks.get());
        } catch (const std::exception& e) {
            std::fprintf(stderr, "train: rank %d: %s\n", ranks->rank(), e.what());
            end_all_ranks();
        }
        return {};
    });
}
