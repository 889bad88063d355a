// A small decoder for Llama-like GGUF files: every FFN is tiffin's, the rest of the model is here, on Eigen.
#include <tiffin/cpu/simd/amx_permission.hpp>
#include <tiffin/executor/thread_team.hpp>
#include <tiffin/io/model.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/io/side_file.hpp>

#include <CLI/CLI.hpp>

#include "../support/command_line.hpp"
#include "../support/distinct_files.hpp"
#include "../support/layer_files.hpp"
#include "../support/output.hpp"
#include "../support/progress_bar.hpp"
#include "gguf_model.hpp"
#include "model_file.hpp"
#include "perplexity.hpp"
#include "tokenizer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

struct arguments {
    std::string model, side, prompt, text, dump;
    std::size_t tokens = 64, context = 512, threads = std::max(1u, std::thread::hardware_concurrency());
    std::optional<std::size_t> chunks;
    std::string backend = "simd";
    std::optional<tiffin::dtype> weights;
    bool exact_activations = false;
    float temperature = 0;
    std::uint64_t seed = 1;
};

class stopwatch {
public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string count_of(std::size_t n, const char* what) {
    return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

std::string read_text(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in) throw std::runtime_error(path + ": cannot be read");
    return text;
}

// The FFN of a layer: as it is in the file, or with what a side file puts around it.
ffn_in_model open_ffn(const arguments& args, const tiffin::io::model& model,
                      const tiffin::io::side_file* side, std::size_t i, tiffin::executor_ref execute) {
    const tiffin::prepare_options how{.tokens = 0, .execute = execute};
    tiffin::io::described_layer block = model.layer(i).or_throw();
    std::optional<ngram_input> rows;
    if (side != nullptr && side->layers().contains(i)) {
        block = side->around(i, block).or_throw();
        if (auto ngrams = side->ngrams(i).or_throw()) rows.emplace(*std::move(ngrams));
    }
    const auto load = [&](const auto& backend) {
        auto made = load_layer(block, backend, how);
        if (made) return ffn_in_model(*std::move(made), std::move(rows));
        throw std::runtime_error("layer " + std::to_string(i) + ": " + made.failure().message());
    };
    if (args.backend == "reference") return load(tiffin::reference{});
    if (args.backend == "eigen") return load(tiffin::eigen{});
    const auto weights = args.weights ? tiffin::any_format{*args.weights} : tiffin::kept_as_given;
    return load(simd_of_any_format{weights, {tiffin::dtype::f32}, {!args.exact_activations}});
}

// Per-layer embeddings: their tables stay in the file, in its format.
rows_of_layer open_rows(const arguments& args, tiffin::executor_ref execute) {
    const tiffin::prepare_options how{.tokens = 0, .execute = execute};
    if (args.backend == "reference") return open_per_layer_rows(args.model, tiffin::reference{}, how);
    // Eigen would keep a copy of the table of words for each layer.
    const auto weights = args.backend == "eigen" ? tiffin::any_format{tiffin::dtype::f32}
                         : args.weights          ? tiffin::any_format{*args.weights}
                                                 : tiffin::kept_as_given;
    return open_per_layer_rows(
        args.model, simd_of_any_format{weights, tiffin::kept_as_given, {!args.exact_activations}}, how);
}

// Collects what a prompt's tokens pass through.
class layer_dump {
public:
    void take(const std::string& name, const row_matrix& values) {
        const auto [at, fresh] = tensors_.try_emplace(name, values);
        if (fresh) return;
        at->second.conservativeResize(at->second.rows() + values.rows(), Eigen::NoChange);
        at->second.bottomRows(values.rows()) = values;
    }
    void write(tiffin::io::unfinished_file to, std::span<const std::int32_t> ids) const {
        const std::vector<std::int64_t> wide(ids.begin(), ids.end());
        tiffin::io::safetensors_writer writer;
        writer.add("token_ids", {wide.data(), tiffin::dtype::i64, {wide.size()}});
        for (const auto& [name, values] : tensors_)
            writer.add(name,
                       {values.data(),
                        tiffin::dtype::f32,
                        {static_cast<std::size_t>(values.rows()), static_cast<std::size_t>(values.cols())}});
        writer.write(to).or_throw();
        to.finish().or_throw();
    }

private:
    std::map<std::string, row_matrix> tensors_;
};

// The likeliest token; above temperature 0 one drawn by softmax(logits / temperature).
std::int32_t next_token(const row_matrix& logits, float temperature, std::mt19937_64& random) {
    Eigen::Index best = 0;
    const float most = logits.row(0).maxCoeff(&best);
    if (temperature <= 0) return static_cast<std::int32_t>(best);
    const row_vector weights = ((logits.row(0).array() - most) / temperature).exp().matrix();
    std::discrete_distribution<std::int32_t> draw(weights.data(), weights.data() + weights.size());
    return draw(random);
}

void continue_prompt(const arguments& args, gguf_model& model, const tokenizer& words) {
    if (words.adds_end())
        throw std::runtime_error(
            args.model +
            ": tokenizer.ggml.add_eos_token: texts of this model end with a token of their own; "
            "behind that a prompt is not continued");
    const std::vector<std::int32_t> ids = words.encode(args.prompt, true);
    if (ids.empty())
        throw std::runtime_error("--prompt has no tokens, and texts of this model begin with none");
    if (ids.size() + args.tokens > model.context())
        throw std::runtime_error("the prompt's " + count_of(ids.size(), "token") + " and " +
                                 std::to_string(args.tokens) + " more are beyond the model's context of " +
                                 std::to_string(model.context()));
    std::optional<tiffin::io::unfinished_file> dump_file;
    if (!args.dump.empty()) dump_file = begin_output(args.dump);
    model.begin(ids.size() + args.tokens);
    layer_dump dump;
    const stopwatch prompt_time;
    const row_matrix hidden = model.append(
        ids, args.dump.empty() ? observer{} : [&](const std::string& name, const row_matrix& values) {
            dump.take(name, values);
        });
    row_matrix logits;
    model.logits(hidden.bottomRows(1), logits, model.length() - 1);
    const double prompt_seconds = prompt_time.seconds();
    if (!args.dump.empty()) {
        dump.take("logits", logits);
        dump.write(*std::move(dump_file), ids);
    }

    std::fwrite(args.prompt.data(), 1, args.prompt.size(), stdout);
    std::mt19937_64 random(args.seed);
    std::size_t made = 0;
    const stopwatch time;
    for (; made < args.tokens; ++made) {
        const std::int32_t id = next_token(logits, args.temperature, random);
        if (words.is_end(id) || static_cast<std::size_t>(id) >= words.size()) break;
        const std::string piece = words.decode(id);
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
        const row_matrix state = model.append({&id, 1});
        model.logits(state, logits, model.length() - 1);
    }
    const double seconds = time.seconds();
    std::fputc('\n', stdout);
    std::fprintf(stderr, "prompt: %s, %.1f tokens/s; generation: %s, %.1f tokens/s\n",
                 count_of(ids.size(), "token").c_str(), static_cast<double>(ids.size()) / prompt_seconds,
                 count_of(made, "token").c_str(), made > 0 ? static_cast<double>(made) / seconds : 0.0);
}

void print_perplexity(const arguments& args, gguf_model& model, const tokenizer& words,
                      tiffin::executor_ref execute) {
    std::string text = read_text(args.text);
    if (text.ends_with('\n')) text.pop_back();  // as llama-perplexity reads it
    if (words.adds_end())
        throw std::runtime_error(
            args.model +
            ": tokenizer.ggml.add_eos_token: texts of this model end with a token of their own; "
            "their perplexity is not defined");
    if (args.context > model.context())
        throw std::runtime_error("--context " + std::to_string(args.context) +
                                 " is beyond the model's context of " + std::to_string(model.context()));
    const std::vector<std::int32_t> ids = words.encode(text, false);
    if (ids.size() < 2 * args.context)
        throw std::runtime_error(args.text + ": " + count_of(ids.size(), "token") +
                                 " are too few; a context of " + std::to_string(args.context) + " needs " +
                                 std::to_string(2 * args.context));
    const std::size_t all = ids.size() / args.context, chunks = std::min(args.chunks.value_or(all), all);
    perplexity_sum sum;
    const stopwatch time;
    {
        progress_bar bar;
        for (std::size_t i = 0; i < chunks; ++i) {
            bar.show(static_cast<double>(i) / static_cast<double>(chunks), "chunk " + std::to_string(i + 1));
            count_chunk(model, std::span(ids).subspan(i * args.context, args.context), i * args.context,
                        words.begin(), execute, sum);
        }
    }
    const double seconds = time.seconds();
    if (!std::isfinite(sum.value()))
        throw std::runtime_error(args.text + ": the perplexity is no finite number: the mean of -log p is " +
                                 std::to_string(sum.sum / static_cast<double>(sum.predictions)));
    std::printf("perplexity: %.6f +/- %.5f, %s of %zu tokens\n", sum.value(), sum.error(),
                count_of(chunks, "chunk").c_str(), args.context);
    std::fprintf(stderr, "%zu tokens, %.1f tokens/s\n", chunks * args.context,
                 static_cast<double>(chunks * args.context) / seconds);
}

// What is wrong, or nothing.
std::string run(const arguments& args) {
    if (args.prompt.empty() == args.text.empty()) return "give one of --prompt and --perplexity";
    if (!args.dump.empty() && args.prompt.empty()) return "--dump-layers needs --prompt";
    if (!args.dump.empty()) {
        std::string wrong = overwrites_model("MODEL", args.model, args.dump);
        if (wrong.empty() && !args.side.empty()) wrong = overwritten("--side-file", args.side, args.dump);
        if (!wrong.empty()) return wrong;
        check_output(args.dump);
    }
    if (args.backend != "simd" && args.weights)
        return "--backend " + args.backend + ": only simd keeps weights in another format than f32";
    tiffin::thread_team team(args.threads);
    model_file file(args.model);
    const tokenizer words(file.file());
    const tiffin::io::model ffns = tiffin::io::model::open(args.model).or_throw();
    std::optional<tiffin::io::side_file> side;
    if (!args.side.empty()) side = tiffin::io::side_file::open(args.side).or_throw();
    if (side && *side->layers().rbegin() >= ffns.layers())
        return args.side + ": has something for layer " + std::to_string(*side->layers().rbegin()) +
               "; the model has " + std::to_string(ffns.layers());
    std::optional<progress_bar> bar(std::in_place);
    gguf_model model(
        file,
        [&](std::size_t i) {
            bar->show(static_cast<double>(i) / static_cast<double>(ffns.layers()),
                      "layer " + std::to_string(i));
            return open_ffn(args, ffns, side ? &*side : nullptr, i, team);
        },
        team, file.kind().per_layer_rows ? open_rows(args, team) : rows_of_layer());
    bar.reset();
    if (words.size() > model.vocabulary())
        file.refuse(count_of(words.size(), "token") + " have but " + count_of(model.vocabulary(), "row") +
                    " of token_embd.weight");
    if (args.text.empty())
        continue_prompt(args, model, words);
    else
        print_perplexity(args, model, words, team);
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    tiffin::permit_amx();  // before layers are prepared
    arguments args;
    CLI::App app(
        "Continues a prompt by a Llama-like model in a GGUF file, or prints the perplexity of a text. Every\n"
        "FFN and per-layer embedding is computed by tiffin. Architectures: llama, qwen2, qwen3, qwen3moe, "
        "gemma,\n"
        "gemma3, gemma3n, gemma4 (without experts).");
    app.add_option("MODEL", args.model, "GGUF file")->required();
    app.add_option("--side-file", args.side,
                   "Safetensors file with tables for some of the layers (see docs/models.md)");
    app.add_option(
        "--prompt", args.prompt,
        "Text to continue, on the standard output; texts of control tokens in it become these tokens");
    app.add_option("--tokens", args.tokens, "Tokens to add, unless the text ends before")
        ->check(in_range<std::size_t>(0, 1 << 24))
        ->capture_default_str();
    app.add_option("--temperature", args.temperature, "0: the likeliest token; else one is drawn")
        ->check(in_range(temperatures))
        ->capture_default_str();
    app.add_option("--seed", args.seed, "Of the tokens drawn")
        ->check(in_range(seed_numbers))
        ->capture_default_str();
    app.add_option(
        "--perplexity", args.text,
        "Text file whose perplexity is printed, counted as llama-perplexity does: chunks of --context\n"
        "tokens, of which the second half is predicted");
    app.add_option("--context", args.context, "Tokens of a chunk")
        ->check(in_range<std::size_t>(4, 1 << 24))
        ->capture_default_str();
    app.add_option("--chunks", args.chunks, "Chunks at most (default: all)")
        ->check(in_range<std::size_t>(1, 1 << 24));
    const std::map<std::string, tiffin::dtype> formats{{"f32", tiffin::dtype::f32},
                                                       {"bf16", tiffin::dtype::bf16},
                                                       {"f16", tiffin::dtype::f16},
                                                       {"q8_0", tiffin::dtype::q8_0},
                                                       {"q4_0", tiffin::dtype::q4_0}};
    app.add_option_function<std::string>(
           "--weights", [&](const std::string& given) { args.weights = formats.at(given); },
           "Number format that simd keeps the weights of FFNs in (default: the one of the file, or q8_0 "
           "where\n"
           "weights cannot be kept in that)")
        ->check(CLI::IsMember({"f32", "bf16", "f16", "q8_0", "q4_0"}));
    app.add_flag("--f32-activations", args.exact_activations,
                 "Multiply the weights of FFNs with activations as they are, see run_layer");
    app.add_option("--backend", args.backend, "What computes FFNs: reference (double), eigen or simd")
        ->check(CLI::IsMember({"reference", "eigen", "simd"}))
        ->capture_default_str();
    app.add_option("--threads", args.threads, "Threads (default: those of the machine)")
        ->check(in_range(thread_counts));
    app.add_option(
        "--dump-layers", args.dump,
        "Safetensors file to write of the prompt's tokens: token_ids, embeddings, layer.I.ffn_input,\n"
        "layer.I.ffn_output, layer.I.per_layer_output where there are per-layer embeddings, and "
        "layer.I.hidden,\n"
        "the state behind the layer; and the last token's logits");
    return run_command_line(app, "decoder", argc, argv, [&] { return run(args); });
}
