// Trains tables by token id beside the last layers of a model that stays as it is, on a text that it knows little of.
//
//     train_tables model.gguf --text /usr/share/man/man8 --kind retoken --out tables.safetensors
//     decoder model.gguf --side-file tables.safetensors --prompt "mount - "
#include <tiffin/cpu/simd/amx_permission.hpp>
#include <tiffin/executor/thread_team.hpp>
#include <tiffin/learn/learning_rate.hpp>

#include <CLI/CLI.hpp>

#include "../decoder/gguf_model.hpp"
#include "../decoder/tokenizer.hpp"
#include "../support/command_line.hpp"
#include "../support/distinct_files.hpp"
#include "../support/layer_files.hpp"
#include "../support/output.hpp"
#include "../support/progress_bar.hpp"
#include "../train/corpus.hpp"
#include "model_tail.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>

namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t asked_to_stop = 0;

struct arguments {
    std::string model;
    std::vector<fs::path> text, prose;
    fs::path out, held_out_texts;
    tail_options tail;
    std::size_t tokens = 300000, judged = 32768, epochs = 3;
    std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
    double rate = 3e-3, held_out = 0.05;
};

// Whole sequences of a text, and what the layers that stay as they are make of them.
struct prepared_text {
    std::string name;
    std::string text;
    std::vector<std::int32_t> ids, targets;
    row_matrix stream;
    double before = 0;  // its perplexity
};

// About `most` tokens of documents, in an order that depends on their texts alone: a sample of all of them.
prepared_text sequences_of(std::string name, std::vector<document> documents, const tokenizer& words,
                           std::size_t most, std::size_t context) {
    std::sort(documents.begin(), documents.end(),
              [](const document& a, const document& b) { return fnv1a(a.text) < fnv1a(b.text); });
    prepared_text made{std::move(name), {}, {}, {}, {}};
    std::size_t about = 0;
    for (const document& d : documents) {
        made.text += (made.text.empty() ? "" : "\n\n") + d.text;
        about += words.encode(d.text, false).size();
        if (about > most) break;
    }
    if (made.text.ends_with('\n')) made.text.pop_back();  // as llama-perplexity reads it
    const std::vector<std::int32_t> all = words.encode(made.text, false);
    const std::size_t count = all.empty() ? 0 : std::min(all.size() - 1, most) / context;
    if (count == 0)
        throw std::runtime_error("the text " + made.name + " has " + std::to_string(all.size()) +
                                 " tokens; one sequence and the token behind it take " +
                                 std::to_string(context + 1));
    made.ids.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count * context));
    made.targets.assign(all.begin() + 1, all.begin() + static_cast<std::ptrdiff_t>(count * context + 1));
    for (std::size_t i = 0; words.begin() && i < count; ++i) made.ids[i * context] = *words.begin();
    return made;
}

class stopwatch {
public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }
    // What is left, as far as one can tell by what is done.
    [[nodiscard]] std::string left(double done) const {
        char text[48];
        std::snprintf(text, sizeof text, "%.1f min left", seconds() / done * (1 - done) / 60);
        return done > 0 ? text : "";
    }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The layers that stay as they are run once over each text.
void run_fixed_layers(const arguments& args, model_file& file, const tiffin::io::model& ffns,
                      std::size_t count, std::span<prepared_text* const> texts,
                      tiffin::executor_ref execute) {
    const auto open = [&](std::size_t i) {
        const simd_of_any_format backend{tiffin::kept_as_given, {tiffin::dtype::f32}, {true}};
        return load_layer(ffns.layer(i).or_throw(), backend, {.tokens = 0, .execute = execute}).or_throw();
    };
    gguf_model model(file, open, execute);
    const std::size_t context = args.tail.context;
    std::size_t all = 0, done = 0;
    for (const prepared_text* t : texts) all += t->ids.size();
    const stopwatch time;
    progress_bar bar;
    for (prepared_text* t : texts) {
        t->stream.resize(as_index(t->ids.size()), as_index(file.count("embedding_length")));
        for (std::size_t at = 0; at < t->ids.size() && asked_to_stop == 0; at += context, done += context) {
            const double share = static_cast<double>(done) / static_cast<double>(all);
            bar.show(share, "layers 0 to " + std::to_string(count - 1) + ", " + time.left(share));
            t->stream.middleRows(as_index(at), as_index(context)) =
                model.stream(std::span(t->ids).subspan(at, context), count, at);
        }
    }
}

// As llama-perplexity counts: of each sequence the second half is predicted, all but its last token.
double perplexity_of(const prepared_text& text, language_model& model, const tail_options& how) {
    double sum = 0;
    std::size_t count = 0;
    std::vector<double> losses(how.batch * how.context);
    for (std::size_t at = 0; at < text.ids.size(); at += losses.size()) {
        const std::size_t n = std::min(losses.size(), text.ids.size() - at);
        model.judge(std::span(text.ids).subspan(at, n), std::span(text.targets).subspan(at, n), how.context,
                    std::span(losses).first(n), text.stream.middleRows(as_index(at), as_index(n)));
        for (std::size_t t = 0; t < n; ++t)
            if (const std::size_t i = t % how.context; i >= how.context / 2 && i + 1 < how.context) {
                sum += losses[t];
                ++count;
            }
    }
    const double made = std::exp(sum / static_cast<double>(count));
    if (!std::isfinite(made))
        throw std::runtime_error("the perplexity of " + text.name + " is no finite number");
    return made;
}

// The sequences of an epoch, in an order that depends on the seed alone.
std::vector<std::size_t> order_of(std::size_t count, std::uint64_t seed, std::size_t epoch) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    tiffin::detail::counter_random random(seed, epoch);
    for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    return order;
}

void learn(const arguments& args, const prepared_text& text, model_tail& tail, tiffin::executor_ref execute) {
    const std::size_t context = args.tail.context, count = text.ids.size() / context,
                      steps = args.epochs * (count / args.tail.batch);
    if (steps == 0)
        throw std::runtime_error("the text has " + std::to_string(count) + " sequences; a step takes " +
                                 std::to_string(args.tail.batch));
    tiffin::adamw<tiffin::simd<>> optimizer({.decay = 0, .clip = 1});
    tail.layers().add_to(optimizer);
    const tiffin::learning_rate rate{.peak = args.rate, .warm_up = steps / 20, .steps = steps, .last = 0.1};
    std::vector<std::int32_t> ids(args.tail.batch * context), targets(ids.size());
    row_matrix stream(as_index(ids.size()), text.stream.cols());
    std::vector<std::size_t> order;
    double recent = 0;
    progress_bar bar;
    const stopwatch time;
    for (std::size_t step = 0; step < steps && asked_to_stop == 0; ++step) {
        const std::size_t per_epoch = count / args.tail.batch, within = step % per_epoch;
        if (within == 0) order = order_of(count, args.tail.seed, step / per_epoch);
        for (std::size_t i = 0; i < args.tail.batch; ++i) {
            const std::size_t from = order[within * args.tail.batch + i] * context;
            std::copy_n(text.ids.data() + from, context, ids.data() + i * context);
            std::copy_n(text.targets.data() + from, context, targets.data() + i * context);
            stream.middleRows(as_index(i * context), as_index(context)) =
                text.stream.middleRows(as_index(from), as_index(context));
        }
        tail.layers().clear_gradients();
        const step_losses losses = tail.layers().learn(ids, targets, stream);
        if (!std::isfinite(losses.prediction + losses.router))
            throw std::runtime_error("the loss is not finite in step " + std::to_string(step + 1));
        optimizer.step(rate.at(step), execute).or_throw();
        recent = step == 0 ? losses.prediction : 0.95 * recent + 0.05 * losses.prediction;
        const double done = static_cast<double>(step + 1) / static_cast<double>(steps);
        char line[96];
        std::snprintf(line, sizeof line, "step %zu of %zu, loss %.3f, %s", step + 1, steps, recent,
                      time.left(done).c_str());
        bar.show(done, line);
        if ((step + 1) % per_epoch == 0) {
            bar.clear();
            std::printf("epoch %zu: loss %.4f, %.0f tokens/s\n", (step + 1) / per_epoch, recent,
                        static_cast<double>((step + 1) * ids.size()) / time.seconds());
            std::fflush(stdout);
            tail.write(args.out);
        }
    }
}

void write_texts(const fs::path& folder, std::span<prepared_text* const> texts) {
    fs::create_directories(folder);
    for (const prepared_text* t : texts) {
        write_text(folder / (t->name + ".txt"), t->text);
    }
}

std::vector<document> read_shown(const std::vector<fs::path>& from) {
    progress_bar bar;
    return read_corpus(from,
                       [&](std::size_t done, std::size_t of) {
                           bar.show(static_cast<double>(done) / static_cast<double>(of), "reading");
                       })
        .documents;
}

std::string run(const arguments& args) {
    if (std::string wrong = overwrites_model("MODEL", args.model, args.out.string()); !wrong.empty())
        return wrong;
    check_output(args.out);
    const stopwatch time;
    tiffin::thread_team team(args.threads);
    model_file file(args.model);
    const tokenizer words(file.file());
    const tiffin::io::model ffns = tiffin::io::model::open(args.model).or_throw();
    const std::size_t context = args.tail.context;
    if (context > file.count("context_length"))
        return "--context " + std::to_string(context) + " is beyond the model's " +
               std::to_string(file.count("context_length"));
    model_tail tail(file, ffns, args.tail, team);  // what is wrong is told before texts are read
    if (words.size() > tail.layers().sizes().ffn.vocabulary)
        return args.model + ": has " + std::to_string(words.size()) + " tokens and but " +
               std::to_string(tail.layers().sizes().ffn.vocabulary) + " rows of token_embd.weight";

    split_corpus parts = split(read_shown(args.text), args.held_out);
    prepared_text learnt = sequences_of("learnt", std::move(parts.learnt), words, args.tokens, context);
    prepared_text held_out = sequences_of("held_out", std::move(parts.held_out), words, args.judged, context);
    std::optional<prepared_text> prose;
    if (!args.prose.empty())
        prose = sequences_of("prose", read_shown(args.prose), words, args.judged, context);
    std::vector<prepared_text*> judged{&held_out};
    if (prose) judged.push_back(&*prose);
    std::vector<prepared_text*> all{judged};
    all.push_back(&learnt);
    std::printf(
        "model: %s, %zu layers; %s beside the FFNs of the last %zu: %.1f million numbers that learn, "
        "%.0f kFLOPs more per token\n",
        args.model.c_str(), ffns.layers(), args.tail.kind.c_str(), args.tail.layers,
        static_cast<double>(tail.learning()) / 1e6, tail.added_flops() / 1e3);
    for (const prepared_text* t : all) std::printf("text: %s, %zu tokens\n", t->name.c_str(), t->ids.size());
    std::fflush(stdout);
    if (!args.held_out_texts.empty()) write_texts(args.held_out_texts, judged);

    std::signal(SIGINT, [](int) { asked_to_stop = 1; });
    std::signal(SIGTERM, [](int) { asked_to_stop = 1; });
    run_fixed_layers(args, file, ffns, tail.first(), all, team);
    if (asked_to_stop != 0) return "stopped before anything was learnt";
    for (prepared_text* t : judged) {
        t->before = perplexity_of(*t, tail.layers(), args.tail);
        std::printf("perplexity of %s: %.3f\n", t->name.c_str(), t->before);
    }
    std::fflush(stdout);
    learn(args, learnt, tail, team);
    tail.write(args.out);
    std::printf("\n| text | tokens | perplexity before | after |\n|---|---|---|---|\n");
    for (const prepared_text* t : judged)
        std::printf("| %s | %zu | %.3f | %.3f |\n", t->name.c_str(), t->ids.size(), t->before,
                    perplexity_of(*t, tail.layers(), args.tail));
    std::printf("\n%s written%s; %.1f minutes\n", args.out.string().c_str(),
                asked_to_stop != 0 ? ", stopped early" : "", time.seconds() / 60);
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    tiffin::permit_amx();  // before layers are prepared
    arguments args;
    std::vector<std::string> kinds;
    for (const table_kind& k : table_kinds()) kinds.emplace_back(k.name);
    CLI::App app(
        "Trains tables by token id beside the last layers of a Llama-like GGUF model, whose own weights stay "
        "as\n"
        "they are. Writes a side file for `decoder --side-file` and for stock llama.cpp (docs/models.md).\n"
        "Ctrl-C writes what has been learnt.");
    app.add_option("MODEL", args.model, "GGUF file of architecture llama")->required();
    app.add_option("--text", args.text, "Files and folders to learn from; some documents are held out")
        ->required();
    app.add_option("--prose", args.prose, "Files and folders of another kind, only to be judged by");
    app.add_option("--out", args.out, "Side file to write, after every epoch")->required();
    app.add_option("--kind", args.tail.kind, "What learns")
        ->check(CLI::IsMember(kinds))
        ->capture_default_str();
    const auto count = [&](const char* name, std::size_t& to, const char* what) {
        app.add_option(name, to, what)->check(in_range<std::size_t>(1, 1 << 30))->capture_default_str();
    };
    count("--layers", args.tail.layers, "The last layers of the model, which get tables");
    count("--experts", args.tail.experts, "Rows per token of a pool (mort), of which 2 are chosen");
    count("--d-mem", args.tail.d_mem, "Width of a memory's rows (meki)");
    count("--tokens", args.tokens, "Tokens to learn from, at most");
    count("--epochs", args.epochs, "Times that each is seen");
    count("--context", args.tail.context, "Tokens per sequence");
    count("--batch", args.tail.batch, "Sequences of a step");
    count("--judged", args.judged, "Tokens of each text to be judged by, at most");
    app.add_option("--threads", args.threads, "Threads")
        ->check(in_range(thread_counts))
        ->capture_default_str();
    app.add_option("--rate", args.rate, "Peak learning rate")
        ->check(in_range(1e-12, 1e12))
        ->capture_default_str();
    app.add_option("--held-out", args.held_out, "Share of the documents that is held out")
        ->check(in_range(0.0, 1.0))
        ->capture_default_str();
    app.add_option("--seed", args.tail.seed, "Of the tables and of the order")
        ->check(in_range(seed_numbers))
        ->capture_default_str();
    app.add_option("--write-texts", args.held_out_texts,
                   "Folder for the texts that are judged by, for other programs");
    return run_command_line(app, "train_tables", argc, argv, [&] { return run(args); });
}
