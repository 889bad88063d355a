// Runs a layer file on given inputs: the tool that checks weights exported from elsewhere.
#include <tiffin/executor/openmp.hpp>
#include <tiffin/io/layer_file.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

namespace {

struct arguments {
    std::string layer, input, output;
    std::string backend = "simd";
    std::string weights = "f32", tables = "f32";
    int threads = 1;
    std::int64_t batch = 0;
};

// Everything that goes wrong ends here: one line, status 1, no output file.
int fail(const std::string& line) {
    std::fprintf(stderr, "run_layer: %s\n", line.c_str());
    return 1;
}

struct inputs {
    tiffin::matrix_view<const float> x;
    std::vector<float> x_copy;  // where the file's bytes are not aligned
    std::vector<std::int32_t> token_ids;
};

tiffin::result<inputs> read_inputs(const tiffin::io::safetensors_file& file, const tiffin::any_layer& layer) {
    using tiffin::errc;
    using tiffin::failure;
    for (const auto& [name, tensor] : file.tensors().entries())
        if (name != "x" && name != "token_ids")
            return failure{errc::unused_tensor, name, "not read by this block; INPUT holds x and token_ids"};
    inputs in;
    const tiffin::tensor_view* const x = file.tensors().find("x");
    if (x == nullptr) return failure{errc::missing_tensor, "x", "missing; F32 of shape (T, d_model)"};
    if (x->type != tiffin::dtype::f32)
        return failure{errc::dtype, "x", "has dtype " + std::string(name_of(x->type)) + "; it must be F32"};
    if (x->shape.rank() != 2 || x->shape[1] != layer.d_model())
        return failure{errc::shape, "x",
                       "has shape " + to_string(x->shape) +
                           "; it must be (T, d_model) with d_model = " + std::to_string(layer.d_model())};
    const std::size_t tokens = x->shape[0];
    in.x_copy.resize(x->shape.elements());
    for (std::size_t i = 0; i < in.x_copy.size(); ++i) in.x_copy[i] = load_as_f32(x->data, x->type, i);
    in.x = {in.x_copy.data(), tokens, layer.d_model()};

    const tiffin::tensor_view* const ids = file.tensors().find("token_ids");
    if (ids == nullptr) {
        if (layer.reads_token_ids() && tokens > 0)
            return failure{errc::missing_tensor, "token_ids", "missing; the block looks up rows by token id"};
        return in;
    }
    if (ids->type != tiffin::dtype::i64 && ids->type != tiffin::dtype::i32)
        return failure{errc::dtype, "token_ids",
                       "has dtype " + std::string(name_of(ids->type)) + "; it must be I64 or I32"};
    if (ids->shape.rank() != 1 || ids->shape[0] != tokens)
        return failure{
            errc::shape, "token_ids",
            "has shape " + to_string(ids->shape) + "; x has " + std::to_string(tokens) + " tokens"};
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
            return failure{errc::token_id, "token_ids",
                           "token_ids[" + std::to_string(i) + "] = " + std::to_string(id) +
                               " is not a row of any table"};
        in.token_ids.push_back(static_cast<std::int32_t>(id));
    }
    return in;
}

int run(const arguments& args) {
    const auto open = [&]() -> tiffin::result<tiffin::any_layer> {
        if (args.backend == "reference") return tiffin::io::open_layer(args.layer, tiffin::reference{});
        if (args.backend == "eigen") return tiffin::io::open_layer(args.layer, tiffin::eigen{});
        return tiffin::io::open_layer(args.layer, tiffin::simd{});
    };
    const auto layer = open();
    if (!layer) return fail(layer.failure().message());
    const auto file = tiffin::io::safetensors_file::open(args.input);
    if (!file) return fail(file.failure().message());
    const auto in = read_inputs(*file, *layer);
    if (!in) return fail(file->label() + ": " + in.failure().message());

    const std::size_t tokens = in->x.rows, d_model = layer->d_model();
    const std::size_t batch =
        args.batch > 0 ? static_cast<std::size_t>(args.batch) : std::max<std::size_t>(tokens, 1);
    const tiffin::openmp execute{args.threads};
    tiffin::workspace workspace =
        layer->make_workspace(std::min<std::size_t>(batch, 512), execute.concurrency());
    std::vector<float> y(tokens * d_model);
    const tiffin::matrix_view<float> out(y.data(), tokens, d_model);
    for (std::size_t first = 0; first < tokens; first += batch) {
        const std::size_t count = std::min(batch, tokens - first);
        const std::span<const std::int32_t> ids = in->token_ids.empty()
                                                      ? std::span<const std::int32_t>{}
                                                      : std::span(in->token_ids).subspan(first, count);
        if (const tiffin::status s = layer->try_call(in->x.rows_from(first, count), ids,
                                                     out.rows_from(first, count), workspace, execute);
            !s)
            return fail(file->label() + ": " + s.failure().message() +
                        (first > 0 ? ", counted from token " + std::to_string(first) : ""));
    }
    tiffin::io::safetensors_writer writer;
    writer.add("y", {y.data(), tiffin::dtype::f32, {tokens, d_model}});
    if (const tiffin::status s = writer.write(args.output); !s) return fail(s.failure().message());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "Runs the block of a layer file (safetensors, see the README) on x and token_ids of INPUT and\n"
        "writes y to OUTPUT.");
    app.add_option("LAYER", args.layer, "Layer file: tensors, and in __metadata__ the block and its options")
        ->required();
    app.add_option("INPUT", args.input,
                   "Safetensors file with x F32 (T, d_model) and token_ids I64 or I32 (T)")
        ->required();
    app.add_option("OUTPUT", args.output, "Safetensors file to write: y F32 (T, d_model)")->required();
    app.add_option("--backend", args.backend, "reference (double), eigen or simd")
        ->check(CLI::IsMember({"reference", "eigen", "simd"}))
        ->capture_default_str();
    app.add_option("--weights", args.weights, "Number format of dense weights while running")
        ->check(CLI::IsMember({"f32"}))
        ->capture_default_str();
    app.add_option("--tables", args.tables, "Number format of tables while running")
        ->check(CLI::IsMember({"f32"}))
        ->capture_default_str();
    app.add_option("--threads", args.threads, "OpenMP threads")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    app.add_option("--batch", args.batch, "Tokens a call (default: all in one)")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp& help) {
        return app.exit(help);
    } catch (const CLI::ParseError& e) {
        return fail(e.what());
    }
    try {
        return run(args);
    } catch (const std::exception& e) {  // no memory
        return fail(args.layer + ": " + e.what());
    }
}
