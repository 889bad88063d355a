// The main job: real text through SwiGLU and the layers that replace or join it, side by side.
#include <tiffin/analysis/equivalence.hpp>
#include <tiffin/analysis/routing.hpp>
#include <tiffin/cpu/simd/amx_permission.hpp>
#include <tiffin/executor/thread_team.hpp>
#include <tiffin/io/model.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "../support/command_line.hpp"
#include "../support/distinct_files.hpp"
#include "../support/machine.hpp"
#include "../support/output.hpp"
#include "../support/progress_bar.hpp"
#include "../support/signals.hpp"
#include "../support/vocabulary.hpp"
#include "contender.hpp"
#include "initialised.hpp"
#include "memory_plan.hpp"
#include "rounds.hpp"
#include "trained_layer.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;

const std::vector<shape> known_shapes{{"llama-3.2-1b", 2048, 8192},
                                      {"qwen3-0.6b", 1024, 3072},
                                      {"mobilellm-350m", 960, 2560}};  // the largest first

struct arguments {
    std::string text;
    std::string shape;  // empty: the largest known that memory is there for
    std::string json;
    std::string model, layer_file;  // in place of shape
    std::size_t layer = 0;
    std::vector<std::string> compositions;
    std::size_t tokens = 1024;
    std::size_t vocab = 4096;
    std::string tables = "memory";
    std::string backend = "simd";
    double seconds = 40;
    std::size_t threads = std::thread::hardware_concurrency();
    std::size_t cache_mib = 0, memory_mib = 0;  // 0: the machine's
};

std::string read_file(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in || fs::is_directory(path)) throw std::runtime_error(path.string() + ": cannot be read");
    return {std::istreambuf_iterator<char>(in), {}};
}

// The text given, or the project's own: its prose and its headers.
std::string read_text(const std::string& path) {
    std::string text;
    if (!path.empty()) {
        text = read_file(path);
    } else {
        const fs::path root = TIFFIN_SOURCE_DIR;
        std::set<fs::path> files;
        for (const char* room : {"include", "examples", "tests"})
            for (const auto& entry : fs::recursive_directory_iterator(root / room))
                if (entry.path().extension() == ".hpp" || entry.path().extension() == ".cpp")
                    files.insert(entry.path());
        for (const fs::path& file : {root / "README.md", root / "CONTRIBUTING.md"})
            if (fs::exists(file)) text += read_file(file);
        for (const fs::path& file : files) text += read_file(file);
    }
    const std::string name = path.empty() ? "the project's own files" : path;
    if (text.empty()) throw std::runtime_error(name + ": there is no text in it");
    if (const auto at = invalid_utf8_at(text))
        throw std::runtime_error(name + ": not UTF-8; the first bad byte is at offset " +
                                 std::to_string(*at));
    return text;
}

shape parse_shape(const std::string& text) {
    for (const shape& s : known_shapes)
        if (s.name == text) return s;
    const auto given = read_shape(text, model_widths, ffn_widths);
    if (!given)
        throw std::runtime_error("--shape " + text +
                                 ": neither a known model (llama-3.2-1b, mobilellm-350m, qwen3-0.6b) nor DxF "
                                 "with D from 1 to 65536 and F from 1 to 262144, such as 512x2048");
    return {text, given->first, given->second};
}

// The FFN of a model's layer. Throws where it is none that is compared here: glu with any activation, mlp with gelu.
tiffin::io::described_layer read_layer(const tiffin::io::model& model, std::size_t index) {
    auto layer = model.layer(index).or_throw();
    const std::string &block = layer.options.at("block"), &phi = layer.options["activation"];
    if (block != "glu" && !(block == "mlp" && phi == "gelu"))
        throw std::runtime_error(model.label() + ": layer " + std::to_string(index) + " is a block '" +
                                 block + "'" + (phi.empty() ? "" : " with " + phi) +
                                 "; compared are glu, and mlp with gelu");
    return layer;
}

std::string scaled(double v) {
    const char* const units[] = {"", "k", "M", "G", "T"};
    std::size_t u = 0;
    for (; v >= 1000 && u < 4; ++u) v /= 1000;
    char out[32];
    std::snprintf(out, sizeof out, v < 10 && u > 0 ? "%.2f %s" : "%.1f %s", v, units[u]);
    return out;
}

std::string ratio_and_quartiles(const rates& of) {
    char out[48];
    std::snprintf(out, sizeof out, "%.2f (%.2f-%.2f)%s", of.ratio, of.low, of.high, of.trusted() ? " " : "~");
    return out;
}

// What is longer than a column ends in dots.
std::string cut(const std::string& text, std::size_t width) {
    return text.size() <= width ? text : text.substr(0, width - 3) + "...";
}

void print_table(const std::vector<row>& rows, std::size_t distinct) {
    std::printf("%-12s %-58s %9s %9s %9s %8s %9s %20s  %9s %20s\n", "layer", "composition", "params",
                "B/token", "FLOP/tok", "ids", "prefill/s", "x swiglu (quartiles)", "decode/s",
                "x swiglu (quartiles)");
    for (const row& r : rows)
        std::printf("%-12s %-58s %9s %9s %9s %8s %9s %21s %9s %21s\n", r.name.c_str(),
                    cut(r.composition, 58).c_str(), scaled(r.cost.parameters).c_str(),
                    scaled(r.cost.bytes_per_token()).c_str(), scaled(r.cost.matrix_flops_per_token).c_str(),
                    r.reads_ids ? std::to_string(distinct).c_str() : "-",
                    scaled(r.prefill.per_second).c_str(), ratio_and_quartiles(r.prefill).c_str(),
                    scaled(r.decode.per_second).c_str(), ratio_and_quartiles(r.decode).c_str());
}

// What of the table cannot be trusted, and whether the machine was busy.
void print_trust(const std::vector<row>& rows, const machine_load::share& load) {
    std::size_t doubtful = 0;
    bool busy = load.busy();
    for (const row& r : rows) {
        doubtful += !r.prefill.trusted() || !r.decode.trusted();
        busy = busy || r.prefill.busy || r.decode.busy;
    }
    if (busy)
        std::printf(
            "\nThe machine was busy: this program's threads waited for a core %.0f %% of their time%s.\n",
            100 * load.waiting,
            load.stolen > 0.01
                ? (", and the host took " + std::to_string(static_cast<int>(100 * load.stolen + 0.5)) +
                   " % of the machine's")
                      .c_str()
                : "");
    if (doubtful > 0)
        std::printf(
            "\n~ cannot be trusted (%zu of %zu layers): the machine was busy meanwhile, or the quartiles are "
            "more than %.0f %% of the median apart.\n",
            doubtful, rows.size(), 100 * rates::widest);
}

// How the routers of the layers share the text out among their experts.
struct routing {
    std::string name;
    tiffin::routing_statistics statistics;
};

void print_routing(const std::vector<routing>& all) {
    if (!all.empty()) std::printf("\nrouter       experts  of the largest entropy  busiest expert's share\n");
    for (const routing& r : all)
        std::printf("%-12s %7zu %22.1f %% %21.1f %%\n", r.name.c_str(), r.statistics.experts(),
                    100 * r.statistics.entropy_share(), 100 * r.statistics.busiest_share());
}

nlohmann::json to_json(const job& j, const std::vector<row>& rows, std::size_t distinct,
                       const arguments& args) {
    nlohmann::json out{{"shape", j.sizes.name},
                       {"d_model", j.sizes.d_model},
                       {"d_ff", j.sizes.d_ff},
                       {"vocab", j.vocab},
                       {"tokens", j.ids.size()},
                       {"distinct_ids", distinct},
                       {"backend", args.backend},
                       {"threads", j.execute.concurrency()},
                       {"text", args.text.empty() ? "tiffin" : args.text}};
    for (const row& r : rows)
        out["layers"].push_back(
            {{"name", r.name},
             {"composition", r.composition},
             {"parameters", r.cost.parameters},
             {"bytes_per_token", r.cost.bytes_per_token()},
             {"flops_per_token", r.cost.matrix_flops_per_token},
             {"sequence_parameters",
              r.cost.sequence_parameters(r.reads_ids ? static_cast<double>(distinct) : 1)},
             {"prefill_tokens_per_second", r.prefill.per_second},
             {"decode_tokens_per_second", r.decode.per_second},
             {"prefill_ratio", r.prefill.ratio},
             {"prefill_ratio_quartiles", {r.prefill.low, r.prefill.high}},
             {"prefill_trusted", r.prefill.trusted()},
             {"decode_ratio", r.decode.ratio},
             {"decode_ratio_quartiles", {r.decode.low, r.decode.high}},
             {"decode_trusted", r.decode.trusted()},
             {"weight_copies", r.copies},
             {"relative_error", r.error},
             {"relative_error_allowed", r.allowed}});
    return out;
}

// A layer that is compared, and what it is made of.
struct entry {
    std::string name;
    std::string composition;
    tiffin::block_cost cost;
    std::function<contender(const job&, const std::string&, const std::string&, const report&)> make;
};

// The layer that a text names, at sizes. Throws where it names none.
entry entry_of(const std::string& name, const std::string& composition, const tiffin::block_shape& sizes) {
    return {name, composition, cost_of(composition, sizes),
            [=](const job& of, const std::string& n, const std::string& c, const report& r) {
                return make_contender(of, n, c, sizes, r);
            }};
}

// What is compared at a shape, and what was asked for. `beside` outlives what is returned.
std::vector<entry> layers_at(const shape& at, std::size_t vocab, std::array<tiffin::block_shape, 2>& beside,
                             const std::vector<std::string>& asked) {
    using namespace tiffin;
    const std::size_t d = at.d_model, f = at.d_ff;
    const block_shape whole{.d_model = d, .d_ff = f, .vocab = vocab};
    block_shape banks = whole, pools = whole, experts = whole, branches = whole;
    banks.experts = banks.rank = 16;
    // As many parameters as the mlp, where the bank leaves any.
    banks.d_ff = std::max<std::size_t>(structmoe_width_at_equal_parameters(d, f, 16, 16), 1);
    pools.experts = 4;
    experts.experts = 8;
    experts.d_ff = std::max<std::size_t>(f / 4, 1);
    beside = {whole, {.d_model = d, .d_ff = std::max<std::size_t>(d / 8, 1), .vocab = vocab}};
    branches.parts = beside.data();
    block_shape keys = whole;  // of 4096 rows, as wide as the model
    keys.experts = 64 * 64;
    keys.rank = std::max<std::size_t>(d / 16, 1);
    keys.heads = 4;
    keys.d_ff = d;
    block_shape matrices = whole;  // 32 x 32 numbers per token
    matrices.experts = 32;
    matrices.inner = {32, 32};
    block_shape ranges = whole,
                beside_x = whole;  // 16 rows per id; rows of n-grams, half as wide as the model
    ranges.experts = keys.experts;
    ranges.choices = 16;
    ranges.inner = {d, d};
    beside_x.inner.fill(std::max<std::size_t>(d / 2, 1));
    // clang-format off
    std::vector<entry> all{
        entry_of("swiglu", "ffn(gate(silu), dense)", whole),
        entry_of("mlp", "ffn(gate(gelu))", whole),
        entry_of("stem", "ffn(gate(silu), token_embedding)", whole),
        entry_of("stem_gate", "ffn(gate(silu, token_embedding), dense)", whole),
        entry_of("stem_hybrid", "ffn(gate(silu), sum(dense, token_embedding))", whole),
        entry_of("structmoe", "ffn(gate(gelu, sum(dense, routed_low_rank(softmax_topk(top_k=1)))))", banks),
        entry_of("swiglu_meki", "parallel(swiglu, meki)", branches),
        entry_of("ple", "ple", beside[1]),
        entry_of("retoken", "modulated(swiglu, folded_modulator)", whole),
        entry_of("deep_1x", "fused(ffn(gate(relu_squared)), deep_embed, multiply)", whole),
        entry_of("deep_4x", "ffn(gate(relu_squared), deep_embed)", whole),
        entry_of("deep_v7a", "ffn(gate(relu_squared), on_residual(deep_embed_matrix))", matrices),
        entry_of("mole", "sum(mlp, lookup_experts)", pools),
        entry_of("mole_trained", "mole_training", pools),
        entry_of("product_keys", "product_key_memory(top_k=16)", keys),
        entry_of("memory_plus", "ffn(gate(silu), product_key_memory(top_k=16))", keys),
        entry_of("peer", "peer(top_k=16)", keys),
        entry_of("peer_relu", "routed_embedding(gated_rows(product_keys_relu(top_k=1), row_activation(gelu), 'down_embed.weight'), "
                              "chosen_rows('up_embed.weight'))", keys),
        entry_of("l3", "sum(named(dense, 'mix_input'), l3_memory)", ranges),
        entry_of("engram", "engram", beside_x),
        entry_of("branch", "dot_gated(copysign_root_gate, normed(rms, through('', per_layer_input, named(dense, 'key_proj')), "
                           "'key_norm'), normed(rms, source_input, 'query_norm'), residual_input)", beside_x),
        entry_of("longcat", "longcat_embedding(terms=7)", beside_x),
        entry_of("longcat_sparse", "longcat_sparse_embedding(terms=7)", beside_x),
        entry_of("mort", "modulated(swiglu, modulator_pool(num_layers=28), add)", pools),
        entry_of("moe", "mixture(softmax_topk(top_k=2), swiglu)", experts),
    };
    // clang-format on
    block_shape any = whole;
    any.experts = any.rank = 16;
    any.heads = 4;
    any.inner.fill(std::max<std::size_t>(d / 2, 1));
    for (const std::string& text : asked)
        all.push_back(entry_of("layer " + std::to_string(&text - asked.data() + 1), text, any));
    return all;
}

// Bytes of the layers, at so many bytes a number. Packed weights are padded to whole panels: a fiftieth, at most.
std::vector<layer_bytes> bytes_of(const std::vector<entry>& compared, const job& j) {
    std::vector<layer_bytes> made;
    for (const entry& e : compared) {
        const double all = 4 * e.cost.parameters, tables = 4 * e.cost.table_parameters;
        const double packed = 1.02 * (all - tables);
        const double in_file = j.tables_in_file ? tables : 0;  // pages of the file, mapped
        // What goes to a device stays there.
        made.push_back({.making = all + in_file + (j.on_device ? 0 : packed),
                        .held = j.on_device ? 0 : tables + packed,
                        .read = e.cost.bytes_per_token()});
    }
    return made;
}

// Bytes of what all layers share: the text and its inputs, what calls write to, and the program.
double shared_bytes(const job& j) {
    const double wide =
        4 * (8 * static_cast<double>(j.sizes.d_model) + 4 * static_cast<double>(j.sizes.d_ff));
    return 2 * 4 * static_cast<double>(j.ids.size() * j.sizes.d_model) + batch * wide + 96e6;
}

// What a run takes at most where it can; and of what is free, to leave some to other programs.
constexpr double most_memory = 2.2e9, of_free_memory = 0.9;

memory_plan plan_at(const std::vector<entry>& compared, const job& j, double cache, double others,
                    double usable) {
    return memory_plan::of(bytes_of(compared, j), shared_bytes(j) + others, j.on_device ? 0 : 2 * cache,
                           std::min(most_memory, usable));
}

// How far the whole job is, and how long the rest takes.
class whole_job {
public:
    // `work`: parameters of all layers that are made. `timing`: seconds.
    whole_job(double work, double timing) : work_(work), timing_(timing) {}
    // Of the layer that is being made.
    void making(double parameters) { now_ = parameters; }
    void made(double parameters, double seconds) {
        made_ += parameters;
        making_seconds_ += seconds;
        now_ = 0;
    }
    void timed(double seconds) { timed_ += seconds; }
    void show(const std::string& what, double timed_now = 0) {
        const double elapsed = seconds_since(start_);
        // Before the first layer is made: as if a hundred million parameters took a second.
        const double rate = made_ > 0 ? making_seconds_ / made_ : 1e-8;
        const double left =
            std::max(0.0, rate * (work_ - made_ - now_ / 2)) + std::max(0.0, timing_ - timed_ - timed_now);
        bar_.show(elapsed / std::max(elapsed + left, 1e-9), what, left);
    }

private:
    double work_, timing_;
    double now_ = 0, made_ = 0, making_seconds_ = 0, timed_ = 0;
    steady::time_point start_ = steady::now();
    progress_bar bar_{"compare_layers", std::chrono::seconds(15)};
};

// Makes the layers group by group, and times each group's in turn.
std::vector<row> run_groups(const job& j, const std::vector<entry>& compared, const memory_plan& plan,
                            double seconds, std::vector<routing>& routed) {
    double work = 0;
    for (const entry& e : compared) work += e.cost.parameters;
    whole_job whole(work, seconds);
    const auto make = [&](const entry& e) {
        whole.making(e.cost.parameters);
        const auto start = steady::now();
        contender made = e.make(j, e.name, e.composition,
                                [&](double, const std::string& what) { whole.show(e.name + ": " + what); });
        if (made.choices != 0 && made.choices != made.experts) {
            routing r{e.name, tiffin::routing_statistics(made.experts)};
            if (const tiffin::status s = r.statistics.add(made.routes(), made.choices); !s)
                throw std::runtime_error(e.name + ": " + s.failure().message());
            routed.push_back(std::move(r));
        }
        whole.made(e.cost.parameters, seconds_since(start));
        return made;
    };
    contender first = make(compared[0]);
    std::vector<row> rows{first.result};
    std::array<std::vector<double>, 2> of_first;  // in all groups
    std::array<bool, 2> busy{};
    for (const memory_plan::group& g : plan.groups) {
        std::vector<contender> beside;
        for (const std::size_t i : g.layers) beside.push_back(make(compared[i]));
        std::vector<contender*> group{&first};
        for (contender& c : beside) group.push_back(&c);
        cache_sweep sweep(g.sweep);
        const double share = seconds * static_cast<double>(std::max<std::size_t>(g.layers.size(), 1)) /
                             static_cast<double>(std::max<std::size_t>(compared.size() - 1, 1));
        for (const bool decode : {false, true}) {
            const round_times times =
                time_rounds(j, group, decode ? 1 : batch, decode ? 9 : 3, share / 2, sweep, [&](double now) {
                    whole.show(decode ? "timing decode" : "timing prefill", std::min(now, share / 2));
                });
            whole.timed(share / 2);
            std::vector<double>& all = of_first[decode];
            all.insert(all.end(), times.per_token[0].begin(), times.per_token[0].end());
            busy[decode] = busy[decode] || times.busy;
            for (std::size_t i = 0; i < beside.size(); ++i)
                (decode ? beside[i].result.decode : beside[i].result.prefill) =
                    rates_of(times.per_token[i + 1], times.per_token[0], times.busy);
        }
        for (const contender& c : beside) rows.push_back(c.result);
    }
    rows[0].prefill = rates_of(of_first[0], of_first[0], busy[0]);
    rows[0].decode = rates_of(of_first[1], of_first[1], busy[1]);
    return rows;
}

int run(const arguments& args) {
    std::optional<tiffin::io::unfinished_file> json;
    if (!args.json.empty()) {
        std::string wrong = overwritten("TEXT", args.text, args.json, "--json");
        if (wrong.empty()) wrong = overwritten("--layer-file", args.layer_file, args.json, "--json");
        if (wrong.empty() && !args.model.empty())
            wrong = overwrites_model("--model", args.model, args.json, "--json");
        if (!wrong.empty()) throw std::runtime_error(wrong);
        json = begin_output(args.json);
    }
    tiffin::thread_team team(args.threads);
    call_memory memory;
    job j{.execute = team, .memory = memory};
    std::optional<tiffin::io::model> model;
    tiffin::io::described_layer real;
    std::optional<tiffin::io::safetensors_file> trained;
    std::size_t most_ids = args.vocab;
    if (!args.layer_file.empty()) {
        trained = tiffin::io::safetensors_file::open(args.layer_file).or_throw();
        const tiffin::block_shape of = block_of(*trained).sizes;
        j.sizes = {fs::path(args.layer_file).filename().string(), of.d_model, of.d_ff};
        if (of.vocab != 0) most_ids = std::min(most_ids, of.vocab);
        if (most_ids < 256)
            throw std::runtime_error(args.layer_file + ": has tables of " + std::to_string(most_ids) +
                                     " rows; a text needs 256, one per byte, or more");
    } else if (args.model.empty()) {
        j.sizes = args.shape.empty() ? known_shapes[0] : parse_shape(args.shape);
    } else {
        model = tiffin::io::model::open(args.model).or_throw();
        real = read_layer(*model, args.layer);
        const tiffin::shape up = real.tensors.find("up_proj.weight")->shape;
        j.sizes = {fs::path(args.model).filename().string() + ", layer " + std::to_string(args.layer), up[1],
                   up[0]};
    }
    const std::string text = read_text(args.text);
    const vocabulary words(text, most_ids);
    std::vector<std::int32_t> all = words.encode(text);
    const std::size_t text_tokens = all.size();
    all.resize(std::min(text_tokens, args.tokens));
    j.ids = std::move(all);
    j.vocab = words.size();
    const std::size_t distinct = std::set<std::int32_t>(j.ids.begin(), j.ids.end()).size();
    j.tables_in_file = args.tables == "file";
    j.on_device = args.backend == "cuda";
    if (j.on_device && j.tables_in_file)
        throw std::runtime_error("--backend cuda: takes --tables memory; rows from a file are for simd");

    std::array<tiffin::block_shape, 2> beside;
    std::vector<entry> compared = layers_at(j.sizes, j.vocab, beside, args.compositions);
    // Weights that are not initialised here: one row more, behind SwiGLU's.
    double given_bytes = 0;
    const auto add_given = [&](const std::string& name, const block_of_file& of,
                               const tiffin::weights& tensors) {
        tiffin::block_shape sizes = of.sizes;
        if (!of.parts.empty()) sizes.parts = of.parts.data();
        entry given = entry_of(name, of.composition, sizes);
        given.make = [=, &tensors](const job& in, const std::string& n, const std::string& c,
                                   const report& r) { return make_contender(in, n, c, sizes, r, &tensors); };
        given_bytes += 4 * given.cost.parameters;  // what was read
        compared.insert(compared.begin() + 1, std::move(given));
    };
    block_of_file given;
    if (trained) {
        given = block_of(*trained);
        add_given("trained", given, trained->tensors());
    }
    if (model) {
        given = {tiffin::io::composition_of(real).or_throw(),
                 {.d_model = j.sizes.d_model, .d_ff = j.sizes.d_ff}};
        add_given(std::string(model->architecture()), given, real.tensors);
    }
    const double cache = args.cache_mib > 0 ? static_cast<double>(args.cache_mib << 20)
                                            : static_cast<double>(last_level_cache_bytes());
    const double there =
        args.memory_mib > 0 ? static_cast<double>(args.memory_mib << 20) : available_memory_bytes();
    const double usable = of_free_memory * there;
    memory_plan plan = plan_at(compared, j, cache, given_bytes, usable);
    const auto fits = [&] { return plan.peak <= usable; };
    if (!fits()) {
        const std::string asked = j.sizes.name;
        const double needed = plan.peak;
        for (const shape& smaller : known_shapes) {
            if (fits()) break;
            if (smaller.d_model * smaller.d_ff >= j.sizes.d_model * j.sizes.d_ff) continue;
            j.sizes = smaller;
            compared = layers_at(j.sizes, j.vocab, beside, args.compositions);
            plan = plan_at(compared, j, cache, 0, usable);
        }
        const std::string sentence = asked + " needs " + scaled(needed) +
                                     "B of memory; nine tenths of what is free are " + scaled(usable) + "B";
        if (!fits()) throw std::runtime_error(sentence + "; there is no smaller known shape that fits");
        if (!args.shape.empty() || model || trained)
            throw std::runtime_error(sentence + "; --shape " + j.sizes.name + " needs " + scaled(plan.peak) +
                                     "B");
        std::printf("%s: %s runs in its place.\n", sentence.c_str(), j.sizes.name.c_str());
    }
    std::printf(
        "%s: at most %sB of memory (%sB are free), about %.0f s of timing after the layers are made.\n",
        j.sizes.name.c_str(), scaled(plan.peak).c_str(), scaled(there).c_str(), args.seconds);
    if (!plan.all_swept)
        std::printf(
            "The caches hold %sB: too much to have all layers out of them within that memory; decode may be "
            "timed partly out of a cache.\n",
            scaled(cache).c_str());
    std::fflush(stdout);
    // Inputs as after a norm: for each token its own row of unit variance.
    j.x.resize(j.ids.size() * j.sizes.d_model);
    for (std::size_t t = 0; t < j.ids.size(); ++t)
        for (std::size_t i = 0; i < j.sizes.d_model; ++i)
            j.x[t * j.sizes.d_model + i] =
                number(77, static_cast<std::uint64_t>(j.ids[t]) * j.sizes.d_model + i, 1.0f);
    memory.y.resize(batch * j.sizes.d_model);
    std::vector<routing> routed;
    const machine_load load(j.execute.concurrency());
    const std::vector<row> rows = run_groups(j, compared, plan, args.seconds, routed);
    const machine_load::share others = load.now();
    std::printf(
        "\n%s: %s, d_model %zu, d_ff %zu, f32, tables in %s | %zu of %zu tokens, vocabulary %zu | %zu "
        "threads\n\n",
        j.sizes.name.c_str(), args.backend.c_str(), j.sizes.d_model, j.sizes.d_ff,
        j.on_device ? "device memory" : args.tables.c_str(), j.ids.size(), text_tokens, j.vocab,
        j.execute.concurrency());
    print_table(rows, distinct);
    print_trust(rows, others);
    print_routing(routed);
    const row worst = *std::max_element(rows.begin(), rows.end(), [](const row& a, const row& b) {
        return a.error / a.allowed < b.error / b.allowed;
    });
    std::printf(
        "\nLargest difference from the double reference: %.1e of the largest output (%s); allowed %.1e.\n",
        worst.error, worst.name.c_str(), worst.allowed);
    if (json) {
        std::fflush(stdout);  // which may be where it goes
        write_text(*std::move(json), to_json(j, rows, distinct, args).dump(2) + "\n");
    }
    if (!(worst.error <= worst.allowed))
        throw std::runtime_error(worst.name + ": differs from the reference");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    tiffin::permit_amx();  // before layers are prepared
    arguments args;
    CLI::App app(
        "Runs a real text through dense and token-indexed FFN layers with initialised weights: checks each\n"
        "against the reference, then times prefill (batches of 512 tokens) and decode (token by token).");
    app.add_option("TEXT", args.text, "UTF-8 text (default: the project's own files)")->check(not_empty());
    app.add_option(
           "--shape", args.shape,
           "llama-3.2-1b, mobilellm-350m, qwen3-0.6b, or DxF such as 512x2048 (default: llama-3.2-1b, or a\n"
           "smaller one where there is not the memory)")
        ->check(not_empty());
    app.add_option("--model", args.model,
                   "GGUF file, or a checkpoint's folder: its layer as one row more, and the shape of that")
        ->check(not_empty())
        ->excludes("--shape");
    app.add_option_function<std::vector<std::string>>(
        "--layer",
        [&](std::vector<std::string> all) {
            for (std::string& one : all) {
                if (one.find_first_not_of("0123456789") != std::string::npos) {
                    args.compositions.push_back(one);
                } else if (args.model.empty()) {
                    throw CLI::ValidationError("--layer " + one, "the number of a layer needs --model");
                } else if (const std::string wrong = CLI::Validator(in_range(layer_numbers))(one);
                           !wrong.empty()) {
                    throw CLI::ValidationError("--layer", wrong);
                } else {
                    args.layer = static_cast<std::size_t>(std::stoul(one));
                }
            }
        },
        "A composition as text, as one row more, at 16 experts of rank 16: \"mixture(softmax_topk(top_k=2), "
        "stem)\".\n"
        "It may be given again. A number: layer of the model, from 0 on (default: 0)");
    app.add_option(
           "--layer-file", args.layer_file,
           "Layer file (examples/train writes them): its block as one row more, and the shape of that")
        ->check(not_empty())
        ->excludes("--shape")
        ->excludes("--model");
    app.add_option("--tokens", args.tokens, "Tokens of the text that run, from its beginning")
        ->check(in_range<std::size_t>(1, 1 << 24))
        ->capture_default_str();
    app.add_option("--vocab", args.vocab, "Largest vocabulary: 256 bytes and the most frequent words")
        ->check(in_range<std::size_t>(256, 1 << 20))
        ->capture_default_str();
    app.add_option(
           "--tables", args.tables,
           "memory, or file: token tables are written to a temporary file and mapped, and the rows of\n"
           "each call gathered from it")
        ->check(CLI::IsMember({"memory", "file"}))
        ->capture_default_str();
    std::vector<std::string> backends{"simd"};
#if defined(TIFFIN_EXAMPLE_CUDA)
    backends.push_back("cuda");
#endif
    app.add_option(
           "--backend", args.backend,
           "simd, or cuda in builds that have it: weights and tables on the device, each call waited for")
        ->check(CLI::IsMember(backends))
        ->capture_default_str();
    app.add_option(
           "--seconds", args.seconds,
           "That timing takes in all; each layer is timed in 3 calls of prefill and 9 of decode at least")
        ->check(in_range(0.001, 86400.0))
        ->capture_default_str();
    app.add_option("--threads", args.threads, "Threads (default: all)")->check(in_range(thread_counts));
    app.add_option("--cache-mib", args.cache_mib,
                   "As if the last-level caches had so many MiB (default: what they have)")
        ->check(in_range<std::int64_t>(1, 1 << 20));
    app.add_option("--memory-mib", args.memory_mib,
                   "As if so many MiB of memory were free (default: what is free)")
        ->check(in_range<std::int64_t>(1, 1 << 30));
    app.add_option("--json", args.json, "File to write the table to; benchmarks/plot.py draws it")
        ->check(not_empty());
    CLI11_PARSE(app, argc, argv);
    watch_signals();
    try {
        return run(args);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "compare_layers: %s\n", e.what());
        return 1;
    }
}
