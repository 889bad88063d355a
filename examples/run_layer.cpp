// Runs a layer file, or the FFN of a layer of a model, on given inputs: the tool that checks weights exported from
// elsewhere.
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/amx_permission.hpp>
#include <tiffin/executor/thread_team.hpp>
#include <tiffin/io/model.hpp>
#include <tiffin/io/model_architecture.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>

#include "support/command_line.hpp"
#include "support/distinct_files.hpp"
#include "support/layer_files.hpp"
#include "support/output.hpp"
#include "support/run_gradients.hpp"
#if defined(TIFFIN_EXAMPLE_CUDA)
#    include "support/layer_files_on_device.hpp"
#endif

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

struct arguments {
    std::string layer, input, output;  // of --model: INPUT and OUTPUT alone
    std::string gradients, composition;
    std::string model;
    std::optional<std::size_t> model_layer;
    std::string backend = "simd";
    std::optional<tiffin::dtype> weights;
    std::optional<tiffin::dtype> tables;  // none: each as its file has it
    bool exact_activations = false;
    int threads = 1;
    std::int64_t batch = 0;
};

// A matrix of INPUT; copied, since a file's bytes need not be aligned.
struct rows_of_file {
    std::vector<float> numbers;
    std::size_t rows = 0, cols = 0;

    [[nodiscard]] tiffin::matrix_view<const float> from(std::size_t first, std::size_t count) const {
        return {numbers.data() + first * cols, count, cols};
    }
};

struct inputs {
    rows_of_file x, dy, residual, per_layer_input;
    std::vector<std::int32_t> token_ids;
};

// Reads matrix `name` of `width` columns, and of `rows` rows where they are known (not 0).
tiffin::result<rows_of_file> read_rows(const tiffin::io::safetensors_file& file, const std::string& name,
                                       std::size_t width, const std::string& width_name,
                                       const rows_of_file* x) {
    using tiffin::errc;
    using tiffin::failure;
    const tiffin::tensor_view* const given = file.tensors().find(name);
    if (given == nullptr)
        return failure(errc::missing_tensor, name, "missing; F32 of shape (T, " + width_name + ")");
    if (given->type != tiffin::dtype::f32)
        return failure(errc::dtype, name,
                       "has dtype " + std::string(name_of(given->type)) + "; it must be F32");
    if (given->shape.rank() != 2 || given->shape[1] != width)
        return failure(errc::shape, name,
                       "has shape " + to_string(given->shape) + "; it must be (T, " + width_name + ") with " +
                           width_name + " = " + std::to_string(width));
    if (x != nullptr && given->shape[0] != x->rows)
        return failure(
            errc::shape, name,
            "has shape " + to_string(given->shape) + "; x has " + std::to_string(x->rows) + " tokens");
    rows_of_file made{std::vector<float>(given->shape.elements()), given->shape[0], width};
    for (std::size_t i = 0; i < made.numbers.size(); ++i) made.numbers[i] = load_as_f32(*given, i);
    return made;
}

// `gradients`: whether dy is read too.
tiffin::result<inputs> read_inputs(const tiffin::io::safetensors_file& file, const tiffin::call_needs& needs,
                                   bool gradients) {
    using tiffin::errc;
    using tiffin::failure;
    for (const auto& [name, tensor] : file.tensors().entries())
        if (name != "x" && name != "token_ids" && !(name == "dy" && gradients) &&
            !(name == "residual" && needs.residual) && !(name == "per_layer_input" && needs.given_width > 0))
            return failure(errc::unused_tensor, name, "not read by this block");
    inputs in;
    auto x = read_rows(file, "x", needs.d_model, "d_model", nullptr);
    if (!x) return x.failure();
    in.x = *std::move(x);
    const std::size_t tokens = in.x.rows;
    if (gradients) {
        auto rows = read_rows(file, "dy", needs.d_model, "d_model", &in.x);
        if (!rows) return rows.failure();
        in.dy = *std::move(rows);
    }
    if (needs.residual) {
        auto rows = read_rows(file, "residual", needs.d_model, "d_model", &in.x);
        if (!rows) return rows.failure();
        in.residual = *std::move(rows);
    }
    if (needs.given_width > 0) {
        auto rows = read_rows(file, "per_layer_input", needs.given_width, "d_ple", &in.x);
        if (!rows) return rows.failure();
        in.per_layer_input = *std::move(rows);
    }
    const tiffin::tensor_view* const ids = file.tensors().find("token_ids");
    if (ids == nullptr) {
        if (!needs.tables.empty() && tokens > 0)
            return failure(errc::missing_tensor, "token_ids", "missing; the block looks up rows by token id");
        return in;
    }
    if (ids->type != tiffin::dtype::i64 && ids->type != tiffin::dtype::i32)
        return failure(errc::dtype, "token_ids",
                       "has dtype " + std::string(name_of(ids->type)) + "; it must be I64 or I32");
    if (ids->shape.rank() != 1 || ids->shape[0] != tokens)
        return failure(
            errc::shape, "token_ids",
            "has shape " + to_string(ids->shape) + "; x has " + std::to_string(tokens) + " tokens");
    for (std::size_t i = 0; i < tokens; ++i) {
        std::int64_t id = 0;
        const auto* const bytes = static_cast<const unsigned char*>(ids->data) + i * size_of(ids->type);
        if (ids->type == tiffin::dtype::i64) {
            std::memcpy(&id, bytes, sizeof id);
        } else {
            std::int32_t narrow;
            std::memcpy(&narrow, bytes, sizeof narrow);
            id = narrow;
        }
        if (id < 0 || id > std::numeric_limits<std::int32_t>::max())
            return failure(errc::token_id, "token_ids",
                           "token_ids[" + std::to_string(i) + "] = " + std::to_string(id) +
                               " is not a row of any table");
        in.token_ids.push_back(static_cast<std::int32_t>(id));
    }
    return in;
}

// Rows are read where they lie: of a table of gigabytes no more than the tokens' own.
tiffin::any_format tables_of(const arguments& args) {
    return args.tables ? tiffin::any_format{*args.tables} : tiffin::kept_as_given;
}

// Of the models that run_memory reads, only some have FFNs that are read here.
tiffin::failure with_memory_named(tiffin::failure why, const std::string& model) {
    const auto architecture = tiffin::io::model_architecture(model);
    for (const std::string_view known : {"qwen4", "deepseek4", "deepseek_v4", "longcat", "engram-peft"})
        if (architecture && architecture->starts_with(known))
            why.what += "; its FFNs are not read, run_memory runs its memory by the last token ids";
    return why;
}

// The layer of a model, on a backend of the host. Its weights are packed by `execute`.
tiffin::result<tiffin::any_layer> open_model_layer(const arguments& args, tiffin::executor_ref execute) {
    const auto model = tiffin::io::model::open(args.model);
    if (!model) return with_memory_named(model.failure(), args.model);
    const tiffin::prepare_options how{.tokens = 0, .execute = execute};
    if (args.backend == "reference")
        return tiffin::io::open_layer(*model, *args.model_layer, tiffin::reference{}, how);
    if (args.backend == "eigen")
        return tiffin::io::open_layer(*model, *args.model_layer, tiffin::eigen{}, how);
    const auto weights = args.weights ? tiffin::any_format{*args.weights} : tiffin::kept_as_given;
    const simd_of_any_format backend{weights, tables_of(args), {!args.exact_activations}};
    return tiffin::io::open_layer(*model, *args.model_layer, backend, how);
}

// OUTPUT and GRADIENTS by a backend that learns.
template <class Backend>
std::string run_gradients(const arguments& args, const Backend& backend,
                          const tiffin::executor_ref& execute) {
    using number = tiffin::training_number<Backend>;
    tiffin::io::unfinished_file output = begin_output(args.output), gradients = begin_output(args.gradients);
    const auto file = tiffin::io::safetensors_file::map(args.layer);
    if (!file) return file.failure().message();
    const auto given = tiffin::io::safetensors_file::open(args.input);
    if (!given) return given.failure().message();
    const tiffin::tensor_view* const x = given->tensors().find("x");
    const std::size_t tokens = x != nullptr && x->shape.rank() > 0 ? x->shape[0] : 0;
    const std::size_t batch =
        args.batch > 0 ? std::min(static_cast<std::size_t>(args.batch), tokens) : tokens;
    const tiffin::training_options<number> how{.tokens = std::max<std::size_t>(batch, 1),
                                               .table_rows = std::max<std::size_t>(tokens, 1),
                                               .workers = execute.concurrency()};
    auto layer = tiffin::io::load_training_layer({file->metadata(), file->tensors()}, backend, how);
    if (!layer) return file->label() + ": " + layer.failure().message();
    const auto in = read_inputs(*given, layer->needs(), true);
    if (!in) return given->label() + ": " + in.failure().message();
    gradient_outputs to;
    const std::string wrong =
        run_step(*layer,
                 {tokens, in->x.numbers, in->dy.numbers, in->residual.numbers, in->per_layer_input.numbers,
                  in->token_ids, std::max<std::size_t>(batch, 1)},
                 execute, to);
    if (!wrong.empty()) return given->label() + ": " + wrong;
    return to.write(std::move(output), std::move(gradients));
}

// What is wrong with asking for gradients, or nothing.
std::string check_gradients(const arguments& args) {
    if (!args.model.empty()) return "--gradients: of a layer file; a model's layer has none";
    if (args.backend != "reference" && args.backend != "simd")
        return "--gradients: backend " + args.backend + " has none; reference and simd have";
    if (args.weights.value_or(tiffin::dtype::f32) != tiffin::dtype::f32 ||
        args.tables.value_or(tiffin::dtype::f32) != tiffin::dtype::f32)
        return "--gradients: weights and tables learn in f32";
    for (const auto& [name, path] : {std::pair{"LAYER", &args.layer}, std::pair{"INPUT", &args.input}})
        if (std::string wrong = overwritten(name, *path, args.gradients, "GRADIENTS"); !wrong.empty())
            return wrong;
    if (std::string wrong = written_twice("GRADIENTS", args.gradients, "OUTPUT", args.output); !wrong.empty())
        return wrong;
    if (args.exact_activations) return "--f32-activations: gradients are of products of f32 anyway";
    return "";
}

// What is wrong, or nothing; no output file then.
std::string run(arguments args) {
    if (args.model.empty() != !args.model_layer) return "--model and --layer are given together";
    if (!args.model.empty() && args.output.empty()) {
        args.output = std::exchange(args.input, std::exchange(args.layer, ""));
    } else if (!args.model.empty()) {
        return "--model takes the place of LAYER: give INPUT and OUTPUT alone";
    }
    if (args.output.empty())
        return "OUTPUT is missing: LAYER INPUT OUTPUT, or --model FILE --layer I INPUT OUTPUT";
    if (std::string wrong = args.model.empty() ? overwritten("LAYER", args.layer, args.output)
                                               : overwrites_model("FILE", args.model, args.output);
        !wrong.empty())
        return wrong;
    if (std::string wrong = overwritten("INPUT", args.input, args.output); !wrong.empty()) return wrong;
    if (!args.model.empty() && args.backend == "cuda")
        return "--backend cuda: layers of models run on the host";
    const tiffin::dtype weights = args.weights.value_or(tiffin::dtype::f32);
    const tiffin::dtype tables = args.tables.value_or(tiffin::dtype::f32);
    if (args.backend == "cuda"
            ? tables != tiffin::dtype::f32 && tables != weights
            : args.backend != "simd" && (weights != tiffin::dtype::f32 || tables != tiffin::dtype::f32))
        return "--backend " + args.backend +
               (args.backend == "cuda" ? ": the device keeps tables in the format of weights"
                                       : ": only simd keeps weights and tables in another format than f32");
    tiffin::thread_team execute(static_cast<std::size_t>(args.threads));
    if (!args.gradients.empty()) {
        if (std::string wrong = check_gradients(args); !wrong.empty()) return wrong;
        return args.backend == "reference" ? run_gradients(args, tiffin::reference<>{}, execute)
                                           : run_gradients(args, tiffin::simd<>{}, execute);
    }
    tiffin::io::unfinished_file output = begin_output(args.output);
    const auto open = [&]() -> tiffin::result<tiffin::any_layer> {
        if (!args.model.empty()) return open_model_layer(args, execute);
        if (args.backend == "reference")
            return tiffin::io::open_layer(args.layer, tiffin::reference{}, args.composition);
        if (args.backend == "eigen")
            return tiffin::io::open_layer(args.layer, tiffin::eigen{}, args.composition);
#if defined(TIFFIN_EXAMPLE_CUDA)
        if (args.backend == "cuda")
            return tiffin::io::open_layer(args.layer, device_backend{weights}, args.composition);
#endif
        return tiffin::io::open_layer(
            args.layer, simd_of_any_format{{weights}, tables_of(args), {!args.exact_activations}},
            args.composition);
    };
    const auto layer = open();
    if (!layer) return layer.failure().message();
    const auto file = tiffin::io::safetensors_file::open(args.input);
    if (!file) return file.failure().message();
    const auto in = read_inputs(*file, layer->needs(), false);
    if (!in) return file->label() + ": " + in.failure().message();

    const std::size_t tokens = in->x.rows, d_model = layer->d_model(), choices = layer->choices();
    const std::size_t batch =
        args.batch > 0 ? static_cast<std::size_t>(args.batch) : std::max<std::size_t>(tokens, 1);
    tiffin::workspace workspace =
        layer->make_workspace(std::min<std::size_t>(batch, 512), execute.concurrency());
    std::vector<float> y(tokens * d_model);
    std::vector<tiffin::choice<float>> routes(tokens * choices);
    const tiffin::matrix_view<float> out(y.data(), tokens, d_model);
    for (std::size_t first = 0; first < tokens; first += batch) {
        const std::size_t count = std::min(batch, tokens - first);
        tiffin::token_inputs given;
        if (!in->token_ids.empty()) given.token_ids = std::span(in->token_ids).subspan(first, count);
        if (layer->needs().residual) given.residual = in->residual.from(first, count);
        if (layer->needs().given_width > 0) given.per_layer_input = in->per_layer_input.from(first, count);
        if (choices > 0) given.routes = std::span(routes).subspan(first * choices, count * choices);
        if (const tiffin::status s = layer->try_call(in->x.from(first, count), given,
                                                     out.rows_from(first, count), workspace, execute);
            !s)
            return file->label() + ": " + s.failure().message() +
                   (first > 0 ? ", counted from token " + std::to_string(first) : "");
    }
    tiffin::io::safetensors_writer writer;
    writer.add("y", {y.data(), tiffin::dtype::f32, {tokens, d_model}});
    std::vector<std::int64_t> route;
    std::vector<float> route_weight;
    for (const tiffin::choice<float>& c : routes) {
        route.push_back(c.expert);
        route_weight.push_back(c.weight);
    }
    if (choices > 0) {
        writer.add("route", {route.data(), tiffin::dtype::i64, {tokens, choices}});
        writer.add("route_weight", {route_weight.data(), tiffin::dtype::f32, {tokens, choices}});
    }
    tiffin::status written = writer.write(output);
    if (written) written = output.finish();
    return written ? "" : written.failure().message();
}

}  // namespace

int main(int argc, char** argv) {
    tiffin::permit_amx();  // before layers are prepared
    arguments args;
    CLI::App app(
        "Runs the block of a layer file (safetensors, docs/layer_files.md) on x and token_ids of INPUT and\n"
        "writes y to OUTPUT, with route and route_weight where the block routes. With --model FILE --layer I "
        "in\n"
        "place of LAYER: the FFN of layer I of a GGUF file or a checkpoint, without the norms around it and "
        "the residual.");
    app.add_option("LAYER", args.layer, "Layer file: tensors, and in __metadata__ the block and its options");
    app.add_option("INPUT", args.input,
                   "Safetensors file with x F32 (T, d_model) and token_ids I64 or I32 (T), and residual F32\n"
                   "(T, d_model) or per_layer_input F32 (T, d_ple) where the block reads them");
    app.add_option("OUTPUT", args.output, "Safetensors file to write: y F32 (T, d_model)");
    app.add_option("--model", args.model,
                   "GGUF file, the first of a split model; or a checkpoint's folder with config.json");
    app.add_option("--layer", args.model_layer, "Layer of the model, from 0 on")
        ->check(in_range(layer_numbers));
    std::vector<std::string> backends{"reference", "eigen", "simd"};
#if defined(TIFFIN_EXAMPLE_CUDA)
    backends.push_back("cuda");
#endif
    app.add_option("--backend", args.backend,
                   "reference (double), eigen, simd, or cuda in builds that have it")
        ->check(CLI::IsMember(backends))
        ->capture_default_str();
    const std::map<std::string, tiffin::dtype> formats{{"f32", tiffin::dtype::f32},
                                                       {"bf16", tiffin::dtype::bf16},
                                                       {"f16", tiffin::dtype::f16},
                                                       {"q8_0", tiffin::dtype::q8_0},
                                                       {"q4_0", tiffin::dtype::q4_0}};
    const auto add_format = [&](const char* name, auto& to, const char* help) {
        app.add_option_function<std::string>(
               name, [&](const std::string& given) { to = formats.at(given); }, help)
            ->check(CLI::IsMember({"f32", "bf16", "f16", "q8_0", "q4_0"}));
    };
    add_format(
        "--weights", args.weights,
        "Number format that simd keeps dense weights in, and cuda everything (default: f32; of a model\n"
        "the one of its file, or q8_0 where weights cannot be kept in that)");
    add_format("--tables", args.tables,
               "Number format that simd keeps tables in (default: the one of the file, read in place)");
    app.add_flag(
        "--f32-activations", args.exact_activations,
        "Multiply weights with activations as they are; else simd rounds them to q8_0 beside weights\n"
        "of q8_0 and q4_0, and to bf16 beside bf16 where the machine multiplies that");
    app.add_option(
        "--gradients", args.gradients,
        "Safetensors file to write: the gradients of sum(y dy), dy F32 (T, d_model) of INPUT: dx, one by\n"
        "the name of each tensor, and of tables <name>.ids and <name>.rows (reference and simd)");
    app.add_option("--composition", args.composition,
                   "What the block is, in place of the options in LAYER: \"ffn(gate(silu), sum(dense, "
                   "token_embedding))\"")
        ->excludes("--gradients")
        ->excludes("--model");
    app.add_option("--threads", args.threads, "Threads")
        ->check(in_range(thread_counts))
        ->capture_default_str();
    app.add_option("--batch", args.batch, "Tokens per call (default: all in one)")
        ->check(in_range<std::int64_t>(1, std::int64_t{1} << 40));
    return run_command_line(app, "run_layer", argc, argv, [&] { return run(args); });
}
