// The main job: real text through SwiGLU and the layers that replace or join it, side by side.
#include <tiffin/cpu/simd/amx_permission.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/io/model.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "../support/progress_bar.hpp"
#include "../support/vocabulary.hpp"
#include "initialised.hpp"
#include "tables_in_file.hpp"
#include "trained_layer.hpp"
#if defined(TIFFIN_EXAMPLE_CUDA)
#    include "layers_on_device.hpp"
#endif

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct shape {
    std::string name;
    std::size_t d_model;
    std::size_t d_ff;
};

const std::vector<shape> known_shapes{
    {"llama-3.2-1b", 2048, 8192}, {"mobilellm-350m", 960, 2560}, {"qwen3-0.6b", 1024, 3072}};

struct arguments {
    std::string text;
    std::string shape = "llama-3.2-1b";
    std::string json;
    std::string model, layer_file;  // in place of shape
    std::size_t layer = 0;
    std::size_t tokens = 1024;
    std::size_t vocab = 4096;
    std::string tables = "memory";
    std::string backend = "simd";
    double seconds = 0.3;
    int threads = 0;
};

// What is compared: the same for every layer.
struct job {
    shape sizes;
    std::size_t vocab = 0;
    std::vector<std::int32_t> ids;  // of the tokens that run
    std::vector<float> x;           // (ids, d_model)
    tiffin::openmp execute;
    bool tables_in_file = false;
    bool on_device = false;
    double seconds = 0;  // that a layer is timed for in a round
};

struct row {
    std::string name, composition;
    tiffin::block_cost cost;
    bool reads_ids = false;  // whether its rows are those of token ids
    std::size_t copies = 0;
    double prefill = 0, decode = 0;              // tokens per second
    double prefill_ratio = 0, decode_ratio = 0;  // to the first layer
    double error = 0, allowed = 0;               // against the reference, relative to the largest output
};

using clock = std::chrono::steady_clock;
double seconds_since(clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
}

// A gated FFN of a model whose activation is not silu; not compiled for the device.
using gated_ffn = tiffin::ffn<tiffin::gate<tiffin::any_activation>, tiffin::dense>;

// One layer's weights may fit in the last-level cache, a model's do not: the layer runs from as many
// copies of its weights as exceed that cache, one after the other.
std::size_t copies_for(double dense_bytes) {
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache <= 0) cache = 32 << 20;
    return std::clamp<std::size_t>(
        static_cast<std::size_t>(2.0 * static_cast<double>(cache) / dense_bytes) + 1, 2, 64);
}

// A layer ready to run: y of tokens [first, first + count) of the text.
struct contender {
    row result;
    std::function<void(std::size_t first, std::size_t count)> call;
    std::function<std::vector<std::int32_t>()> routes;  // the experts of every token; empty: nothing routes
    std::size_t experts = 0, choices = 0;
};

constexpr std::size_t batch = 512;

using report = std::function<void(double done, const std::string& what)>;

// Initialises a layer, or takes the weights given, packs it and holds it against the reference.
template <class Block>
contender make_contender(const job& j, const std::string& name, const std::string& composition,
                         const Block& block, const tiffin::block_shape& sizes, const report& progress,
                         const tiffin::weights* weights = nullptr) {
    struct state {
        initialised given;
        std::unique_ptr<tables_in_file> file;  // null: tables are in memory
        std::vector<float> beside;             // (ids, given_width): rows that calls give beside x
        std::size_t given_width = 0;
        bool residual = false;  // whether they give x itself as the residual
        std::vector<tiffin::layer<Block, tiffin::simd<>>> layers;
        tiffin::workspace workspace;
        std::vector<float> y;
        std::size_t calls = 0;
#if defined(TIFFIN_EXAMPLE_CUDA)
        std::unique_ptr<layers_on_device> device;  // null: the layers run here
#endif

        // Of tokens [first, first + x.rows).
        tiffin::token_inputs inputs(const job& of, std::size_t first,
                                    const tiffin::matrix_view<const float>& x) {
            const auto ids = std::span(of.ids).subspan(first, x.rows);
            tiffin::token_inputs made{.token_ids = ids};
            if (residual) made.residual = x;
            if (given_width > 0)
                made.per_layer_input = {beside.data() + first * given_width, ids.size(), given_width};
            if (file) made.gathered = file->gather(ids);
            return made;
        }
    };
    const std::size_t d = j.sizes.d_model, tokens = j.ids.size();
    contender made;
    made.result.name = name;
    made.result.composition = composition;
    made.result.cost = tiffin::cost(sizes, block);
    row& r = made.result;
    for (const auto& [tensor, t] : tiffin::tensors_needed(block, sizes))
        r.reads_ids =
            r.reads_ids || std::find(t.axes.begin(), t.axes.end(), tiffin::axis::vocab) != t.axes.end();
    progress(0.0, "initialising");
    const auto held = std::make_shared<state>();
    held->given = weights ? widened(*weights) : initialise(block, sizes);
    std::vector<bool> tables, by_id;  // the tensors that have rows, and those of a row per token id
    for (const tiffin::tensor_kind kind : held->given.kinds) {
        tables.push_back(tiffin::holds_rows(kind));
        by_id.push_back(tables.back() && !tiffin::has_row_per_choice(kind));
    }
    if (j.tables_in_file && std::find(by_id.begin(), by_id.end(), true) != by_id.end())
        held->file = std::make_unique<tables_in_file>(held->given.tensors, by_id, name);
    auto reference = tiffin::prepare(block, held->given.tensors, tiffin::reference{});
    held->given_width = reference.needs().given_width;
    held->residual = reference.needs().residual;
    held->beside.resize(tokens * held->given_width);
    fill(held->beside, 78, 1.0f);
    const double dense_bytes = 4 * (r.cost.parameters - r.cost.table_parameters);
    const auto run_here = [&] {
        r.copies = copies_for(dense_bytes);
        for (std::size_t i = 0; i < r.copies; ++i) {
            progress(0.2 + 0.4 * static_cast<double>(i) / static_cast<double>(r.copies), "packing weights");
            held->layers.push_back(tiffin::prepare(block,
                                                   held->file ? held->file->weights() : held->given.tensors,
                                                   tiffin::simd{}, {.tokens = 0}));
        }
        held->workspace = held->layers[0].make_workspace(batch, j.execute.concurrency());
        held->y.resize(std::min(batch, tokens) * d);
        made.call = [held, &j, d](std::size_t first, std::size_t count) {
            const tiffin::matrix_view<const float> x(j.x.data() + first * d, count, d);
            const tiffin::matrix_view<float> y(held->y.data(), count, d);
            std::as_const(held->layers[held->calls++ % held->layers.size()])(x, held->inputs(j, first, x), y,
                                                                             held->workspace, j.execute);
        };

        made.choices = held->layers[0].choices();
        made.experts = sizes.experts;
        made.routes = [held, &j, d] {
            const std::size_t k = held->layers[0].choices(), all = j.ids.size();
            std::vector<tiffin::choice<float>> chosen(all * k);
            for (std::size_t first = 0; first < all && k > 0; first += batch) {
                const std::size_t count = std::min(batch, all - first);
                const tiffin::matrix_view<const float> x(j.x.data() + first * d, count, d);
                const tiffin::matrix_view<float> y(held->y.data(), count, d);
                tiffin::token_inputs inputs = held->inputs(j, first, x);
                inputs.routes = std::span(chosen).subspan(first * k, count * k);
                std::as_const(held->layers[0])(x, inputs, y, held->workspace, j.execute);
            }
            std::vector<std::int32_t> experts;
            for (const tiffin::choice<float>& c : chosen) experts.push_back(c.expert);
            return experts;
        };
    };
#if defined(TIFFIN_EXAMPLE_CUDA)
    if (j.on_device) {
        progress(0.3, "moving weights to the device");
        if constexpr (std::is_same_v<Block, gated_ffn>)
            throw std::runtime_error("--backend cuda: takes models whose activation is silu");
        else
            held->device = make_layers_on_device(block, device_job{held->given.tensors, tables, dense_bytes,
                                                                   j.x, j.ids, held->beside, d, batch});
        r.copies = held->device->copies();
        made.experts = sizes.experts;
        made.choices = held->device->choices();
        made.call = [held](std::size_t first, std::size_t count) { held->device->call(first, count); };
        made.routes = [held] { return held->device->routes(); };
    } else {
        run_here();
    }
#else
    run_here();
#endif

    progress(0.6, "checking against the reference");
    const std::size_t sample = std::min<std::size_t>(tokens, 4);
    std::vector<float> exact(sample * d);
    made.call(0, sample);
#if defined(TIFFIN_EXAMPLE_CUDA)
    if (j.on_device) held->y = held->device->output(sample);
#endif
    const tiffin::matrix_view<const float> first(j.x.data(), sample, d);
    tiffin::token_inputs of_sample = held->inputs(j, 0, first);
    of_sample.gathered = {};  // it has the tables themselves
    reference(first, of_sample, tiffin::matrix_view<float>(exact.data(), sample, d), j.execute);
    float largest = 0, off = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
        largest = std::max(largest, std::abs(exact[i]));
        off = std::max(off, std::abs(exact[i] - held->y[i]));
    }
    r.error = largest > 0 ? static_cast<double>(off / largest) : off;
    // Rounding errors of sums of n terms of random sign grow like sqrt(n) units in the last place of
    // the sum (Higham and Mary, 2019); their constant 8 leaves a failure probability below 1e-13 a sum.
    r.allowed = 8 * std::sqrt(static_cast<double>(d + sizes.d_ff)) * 0x1p-24;

    // What runs from here on are the packed copies and the tables.
    const auto& entries = held->given.tensors.entries();
    const std::vector<std::string> none;
    const auto& stay = held->layers.empty() ? none : held->layers[0].reads_in_place();
    for (std::size_t i = 0; i < held->given.memory.size(); ++i)
        if (std::find(stay.begin(), stay.end(), entries[i].name) == stay.end())
            std::vector<float>().swap(held->given.memory[i]);
    return made;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// Times all layers in turn, several rounds: a machine that slows down for a while slows them all.
// Ratios are medians of the rounds' ratios to the first layer.
void measure(const job& j, std::vector<contender>& all, const report& progress) {
    constexpr std::size_t rounds = 7;
    const std::size_t tokens = j.ids.size();
    // Tokens a second over the text from `at` on, which is moved along.
    const auto rate = [&](contender& c, std::size_t step, std::size_t& at) {
        std::size_t done = 0;
        const auto start = clock::now();
        do {
            if (at >= tokens) at = 0;
            const std::size_t count = std::min(step, tokens - at);
            c.call(at, count);
            at += count;
            done += count;
        } while (seconds_since(start) < j.seconds);
        return static_cast<double>(done) / seconds_since(start);
    };
    for (const bool decode : {false, true}) {
        std::vector<std::vector<double>> rates(all.size()), ratios(all.size());
        std::vector<std::size_t> at(all.size());
        for (std::size_t round = 0; round < rounds; ++round)
            for (std::size_t i = 0; i < all.size(); ++i) {
                const auto turns =
                    static_cast<double>((decode ? rounds : 0) * all.size() + round * all.size() + i);
                progress(turns / static_cast<double>(2 * rounds * all.size()), decode ? "decode" : "prefill");
                rates[i].push_back(rate(all[i], decode ? 1 : batch, at[i]));
                ratios[i].push_back(rates[i].back() / rates[0].back());
            }
        for (std::size_t i = 0; i < all.size(); ++i) {
            row& r = all[i].result;
            (decode ? r.decode : r.prefill) = median(rates[i]);
            (decode ? r.decode_ratio : r.prefill_ratio) = median(ratios[i]);
        }
    }
}

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
    std::size_t d = 0, f = 0;
    char rest = 0;
    if (std::sscanf(text.c_str(), "%zux%zu%c", &d, &f, &rest) != 2 || d == 0 || f == 0 || d > 65536 ||
        f > 262144)
        throw std::runtime_error("--shape " + text +
                                 ": neither a known model (llama-3.2-1b, mobilellm-350m, qwen3-0.6b) nor DxF "
                                 "with D from 1 to 65536 and F from 1 to 262144, such as 512x2048");
    return {text, d, f};
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

void print_table(const std::vector<row>& rows, std::size_t distinct) {
    std::printf("%-12s %-58s %9s %9s %9s %8s %9s %8s %9s %8s\n", "layer", "composition", "params", "B/token",
                "FLOP/tok", "ids", "prefill/s", "x swiglu", "decode/s", "x swiglu");
    for (const row& r : rows)
        std::printf("%-12s %-58s %9s %9s %9s %8s %9s %8.2f %9s %8.2f\n", r.name.c_str(),
                    r.composition.c_str(), scaled(r.cost.parameters).c_str(),
                    scaled(r.cost.bytes_per_token()).c_str(), scaled(r.cost.matrix_flops_per_token).c_str(),
                    r.reads_ids ? std::to_string(distinct).c_str() : "-", scaled(r.prefill).c_str(),
                    r.prefill_ratio, scaled(r.decode).c_str(), r.decode_ratio);
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
             {"prefill_tokens_per_second", r.prefill},
             {"decode_tokens_per_second", r.decode},
             {"prefill_ratio", r.prefill_ratio},
             {"decode_ratio", r.decode_ratio},
             {"weight_copies", r.copies},
             {"relative_error", r.error},
             {"relative_error_allowed", r.allowed}});
    return out;
}

int run(const arguments& args) {
    job j;
    std::optional<tiffin::io::model> model;
    tiffin::io::described_layer real;
    std::optional<tiffin::io::safetensors_file> trained;
    std::size_t most_ids = args.vocab;
    if (!args.layer_file.empty()) {
        trained = tiffin::io::safetensors_file::open(args.layer_file).or_throw();
        with_block_of(*trained, [&](const auto&, const tiffin::block_shape& of, const char*, const auto&) {
            j.sizes = {fs::path(args.layer_file).filename().string(), of.d_model, of.d_ff};
            if (of.vocab != 0) most_ids = std::min(most_ids, of.vocab);
        });
        if (most_ids < 256)
            throw std::runtime_error(args.layer_file + ": has tables of " + std::to_string(most_ids) +
                                     " rows; a text needs 256, one per byte, or more");
    } else if (args.model.empty()) {
        j.sizes = parse_shape(args.shape);
    } else {
        model = tiffin::io::model::open(args.model).or_throw();
        real = read_layer(*model, args.layer);
        const tiffin::shape up = real.tensors.find("up_proj.weight")->shape;
        j.sizes = {fs::path(args.model).filename().string() + ", layer " + std::to_string(args.layer), up[1],
                   up[0]};
    }
    j.execute = tiffin::openmp{args.threads};
    const std::string text = read_text(args.text);
    const vocabulary words(text, most_ids);
    std::vector<std::int32_t> all = words.encode(text);
    const std::size_t text_tokens = all.size();
    all.resize(std::min(text_tokens, args.tokens));
    j.ids = std::move(all);
    j.vocab = words.size();
    const std::size_t distinct = std::set<std::int32_t>(j.ids.begin(), j.ids.end()).size();
    // Inputs as after a norm: for each token its own row of unit variance.
    j.tables_in_file = args.tables == "file";
    j.on_device = args.backend == "cuda";
    if (j.on_device && j.tables_in_file)
        throw std::runtime_error("--backend cuda: takes --tables memory; rows from a file are for simd");
    j.seconds = args.seconds;
    j.x.resize(j.ids.size() * j.sizes.d_model);
    for (std::size_t t = 0; t < j.ids.size(); ++t)
        for (std::size_t i = 0; i < j.sizes.d_model; ++i)
            j.x[t * j.sizes.d_model + i] =
                number(77, static_cast<std::uint64_t>(j.ids[t]) * j.sizes.d_model + i, 1.0f);

    using namespace tiffin;
    const std::size_t d = j.sizes.d_model, f = j.sizes.d_ff;
    const block_shape whole{.d_model = d, .d_ff = f, .vocab = j.vocab};
    struct entry {
        std::string name;
        std::string composition;
        std::function<contender(const job&, const std::string&, const std::string&, const report&)> make;
    };
    const auto compared_as = [](const char* name, const char* composition, const auto& block,
                                const block_shape& sizes) {
        return entry{name, composition,
                     [=](const job& of, const std::string& n, const std::string& c, const report& r) {
                         return make_contender(of, n, c, block, sizes, r);
                     }};
    };
    // The text of a composition beside its type, so that the table shows what ran.
#define COMPARED(name, sizes, ...) compared_as(name, #__VA_ARGS__, __VA_ARGS__{}, sizes)
    block_shape banks = whole, pools = whole, experts = whole, branches = whole;
    banks.experts = banks.rank = 16;
    // As many parameters as the mlp, where the bank leaves any.
    banks.d_ff = std::max<std::size_t>(structmoe_width_at_equal_parameters(d, f, 16, 16), 1);
    pools.experts = 4;
    experts.experts = 8;
    experts.d_ff = std::max<std::size_t>(f / 4, 1);
    const std::array<block_shape, 2> beside{
        {whole, {.d_model = d, .d_ff = std::max<std::size_t>(d / 8, 1), .vocab = j.vocab}}};
    branches.parts = beside.data();
    mixture<softmax_topk, swiglu> two_of_eight;
    two_of_eight.router.top_k = 2;
    block_shape keys = whole;  // of 4096 rows, as wide as the model
    keys.experts = 64 * 64;
    keys.rank = std::max<std::size_t>(d / 16, 1);
    keys.heads = 4;
    keys.d_ff = d;
    block_shape matrices = whole;  // 32 x 32 numbers per token
    matrices.experts = 32;
    matrices.inner = {32, 32};
    product_key_memory sixteen_values;
    sixteen_values.router.top_k = 16;
    memory_plus sixteen_per_head;
    sixteen_per_head.hidden.up.router.top_k = 16;
    peer sixteen_neurons;
    sixteen_neurons.router.top_k = 16;
    block_shape ranges = whole,
                beside_x = whole;  // 16 rows per id; rows of n-grams, half as wide as the model
    ranges.experts = keys.experts;
    ranges.choices = 16;
    ranges.inner = {d, d};
    beside_x.inner.fill(std::max<std::size_t>(d / 2, 1));
    longcat_embedding mean_of_seven;
    mean_of_seven.terms = 7;
    mort<swiglu> mort_of_28_layers;
    mort_of_28_layers.modulator.num_layers = 28;
    // clang-format off
    std::vector<entry> compared{
        COMPARED("swiglu", whole, ffn<gate<silu>, dense>),
        COMPARED("mlp", whole, ffn<gate<gelu>, none>),
        COMPARED("stem", whole, ffn<gate<silu>, token_embedding>),
        COMPARED("stem_gate", whole, ffn<gate<silu, token_embedding>, dense>),
        COMPARED("stem_hybrid", whole, ffn<gate<silu>, sum<dense, token_embedding>>),
        COMPARED("structmoe", banks, ffn<gate<gelu, sum<dense, routed_low_rank<>>>, none>),
        COMPARED("swiglu_meki", branches, parallel<swiglu, meki>),
        COMPARED("retoken", whole, modulated<swiglu, folded_modulator, multiply>),
        COMPARED("deep_1x", whole, fused<ffn<gate<relu_squared>, none>, deep_embed, multiply>),
        COMPARED("deep_4x", whole, ffn<gate<relu_squared>, deep_embed>),
        COMPARED("deep_v7a", matrices, ffn<gate<relu_squared>, on_residual<deep_embed_matrix>>),
        COMPARED("mole", pools, sum<mlp, lookup_experts>),
        compared_as("mole_trained", "sum<mlp, mixture<softmax_all, ...>> of 4", mole_training{}, pools),
        compared_as("product_keys", "product_key_memory of 4096 rows", sixteen_values, keys),
        compared_as("memory_plus", "ffn<gate<silu>, product_key_memory> of 4096 rows", sixteen_per_head, keys),
        compared_as("peer", "routed_embedding<peer_rows, ...> of 4096 rows", sixteen_neurons, keys),
        COMPARED("l3", ranges, sum<named<dense, "mix_input">, l3_memory>),
        compared_as("engram", "dot_gated<..., engram_value>, rows given", engram{}, beside_x),
        compared_as("longcat", "mean_of_terms<sum<...>> of 7, rows given", mean_of_seven, beside_x),
        compared_as("mort", "modulated<swiglu, modulator_pool<>, add>", mort_of_28_layers, pools),
        compared_as("moe", "mixture<softmax_topk{2}, swiglu> of 8, f / 4", two_of_eight, experts),
    };
    // clang-format on
#undef COMPARED
    // Weights that are not initialised here: one row more, behind SwiGLU's.
    const auto add_given = [&](std::string name, std::string composition, const auto& block,
                               const block_shape& sizes, const weights& tensors,
                               const std::vector<block_shape>& parts = {}) {
        const auto make = [=, &tensors](const job& of, const std::string& n, const std::string& c,
                                        const report& r) {
            block_shape shape = sizes;
            if (!parts.empty()) shape.parts = parts.data();
            return make_contender(of, n, c, block, shape, r, &tensors);
        };
        compared.insert(compared.begin() + 1, {std::move(name), std::move(composition), make});
    };
    if (trained)
        with_block_of(*trained, [&](const auto& block, const block_shape& sizes,
                                    const std::string& composition, const std::vector<block_shape>& parts) {
            add_given("trained", "the file's " + composition, block, sizes, trained->tensors(), parts);
        });
    if (model) {
        const auto as = [&](std::string composition, const auto& block) {
            add_given(std::string(model->architecture()), std::move(composition), block, whole, real.tensors);
        };
        const std::string phi = real.options["activation"];
        if (real.options["block"] == "mlp") {
            as("the model's ffn<gate<gelu>, none>", mlp{});
        } else if (phi == "silu") {
            as("the model's ffn<gate<silu>, dense>", swiglu{});
        } else {
            gated_ffn block;
            io::layer_options options(real.options);
            if (const status s = options.read("activation", block.hidden.gate.phi); !s)
                throw std::runtime_error(model->label() + ": " + s.failure().message());
            as("the model's ffn<gate<" + phi + ">, dense>", block);
        }
    }
    std::vector<routing> routed;
    std::vector<row> rows;
    {
        progress_bar bar;
        std::vector<contender> contenders;
        for (const entry& e : compared)
            contenders.push_back(e.make(j, e.name, e.composition, [&](double done, const std::string& what) {
                const double before = static_cast<double>(contenders.size()) + done;
                bar.show(0.4 * before / static_cast<double>(compared.size()), e.name + ": " + what);
            }));
        for (const contender& c : contenders) {
            if (c.choices == 0 || c.choices == c.experts) continue;
            routing r{c.result.name, routing_statistics(c.experts)};
            if (const status s = r.statistics.add(c.routes(), c.choices); !s)
                throw std::runtime_error(c.result.name + ": " + s.failure().message());
            routed.push_back(std::move(r));
        }
        measure(j, contenders,
                [&](double done, const std::string& what) { bar.show(0.4 + 0.6 * done, what); });
        for (const contender& c : contenders) rows.push_back(c.result);
    }
    std::printf(
        "%s: %s, d_model %zu, d_ff %zu, f32, tables in %s | %zu of %zu tokens, vocabulary %zu | %zu "
        "threads\n\n",
        j.sizes.name.c_str(), args.backend.c_str(), j.sizes.d_model, j.sizes.d_ff,
        j.on_device ? "device memory" : args.tables.c_str(), j.ids.size(), text_tokens, j.vocab,
        j.execute.concurrency());
    print_table(rows, distinct);
    print_routing(routed);
    const row worst = *std::max_element(rows.begin(), rows.end(), [](const row& a, const row& b) {
        return a.error / a.allowed < b.error / b.allowed;
    });
    std::printf(
        "\nLargest difference from the double reference: %.1e of the largest output (%s); allowed %.1e.\n",
        worst.error, worst.name.c_str(), worst.allowed);
    if (!args.json.empty()) {
        std::ofstream out(args.json);
        out << to_json(j, rows, distinct, args).dump(2) << '\n';
        if (!out.flush()) throw std::runtime_error(args.json + ": cannot be written");
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
    app.add_option("TEXT", args.text, "UTF-8 text (default: the project's own files)");
    app.add_option("--shape", args.shape, "llama-3.2-1b, mobilellm-350m, qwen3-0.6b, or DxF such as 512x2048")
        ->capture_default_str();
    app.add_option("--model", args.model,
                   "GGUF file, or a checkpoint's folder: its layer as one row more, and the shape of that")
        ->excludes("--shape");
    app.add_option("--layer", args.layer, "Layer of the model, from 0 on")
        ->needs("--model")
        ->capture_default_str();
    app.add_option(
           "--layer-file", args.layer_file,
           "Layer file (examples/train writes them): its block as one row more, and the shape of that")
        ->excludes("--shape")
        ->excludes("--model");
    app.add_option("--tokens", args.tokens, "Tokens of the text that run, from its beginning")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    app.add_option("--vocab", args.vocab, "Largest vocabulary: 256 bytes and the most frequent words")
        ->check(CLI::Range(256, 1 << 20))
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
    app.add_option("--seconds", args.seconds, "That each layer is timed for, at least, in each of 14 rounds")
        ->check(CLI::Range(0.001, 3600.0))
        ->capture_default_str();
    app.add_option("--threads", args.threads, "OpenMP threads (default: all)")->check(CLI::Range(1, 1024));
    app.add_option("--json", args.json, "File to write the table to; benchmarks/plot.py draws it");
    CLI11_PARSE(app, argc, argv);
    try {
        return run(args);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "compare_layers: %s\n", e.what());
        return 1;
    }
}
