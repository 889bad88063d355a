// Runs the token-indexed memory of a published model, on given inputs: the tool that checks it, as run_layer does FFNs. The
// table stays in the model's file.
#include <tiffin/all_policies.hpp>
#include <tiffin/io/gguf_model.hpp>
#include <tiffin/io/ngram_memory.hpp>
#include <tiffin/io/per_layer_memory.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/runtime/memory_branches.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/ngram_addresses.hpp>
#include <tiffin/table/ngram_rows.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>

#include "support/command_line.hpp"
#include "support/distinct_files.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

using tiffin::errc;
using tiffin::failure;
using tiffin::result;
using tiffin::status;

struct arguments {
    std::string model, input, output;
    std::string backend = "simd";
    std::int64_t batch = 0;
    std::optional<std::size_t> layer;

    [[nodiscard]] std::size_t tokens_per_call(std::size_t tokens) const noexcept {
        return batch > 0 ? static_cast<std::size_t>(batch) : std::max<std::size_t>(tokens, 1);
    }
};

// The given tokens: their ids, the streams before the memory, and the sequences that they are of.
struct given_tokens {
    std::vector<std::int32_t> ids;
    std::vector<float> x;
    std::vector<std::uint32_t> sequence_of;
    std::size_t sequences = 1;
};

result<std::vector<std::int64_t>> integers(const tiffin::weights& all, const std::string& name,
                                           std::size_t count, std::int64_t most) {
    const auto* const t = all.find(name);
    if (t == nullptr) return failure(errc::missing_tensor, name, "missing; it has shape (T)");
    if ((t->type != tiffin::dtype::i32 && t->type != tiffin::dtype::i64) || t->shape.rank() != 1 ||
        (count != 0 && t->shape[0] != count))
        return failure(errc::shape, name, "is ", name_of(t->type), " of shape ", to_string(t->shape),
                       "; it must be I64 or I32 (T), as many as x has rows");
    std::vector<std::int64_t> made(t->shape[0]);
    for (std::size_t i = 0; i < made.size(); ++i) {
        made[i] = tiffin::detail::load_integer(*t, i);
        if (made[i] < 0 || made[i] > most)
            return failure(errc::token_id, name, name, "[", i, "] = ", made[i], " lies outside [0, ", most,
                           "]");
    }
    return made;
}

// `ids_known`: how many ids there are; `width`: of x; `sequences`: whether tokens may be of several.
result<given_tokens> read_tokens(const tiffin::weights& all, std::size_t ids_known, std::size_t width,
                                 bool sequences) {
    for (const auto& [name, tensor] : all.entries())
        if (name != "x" && name != "token_ids" && (name != "sequence" || !sequences))
            return failure(errc::unused_tensor, name, "not read; known are token_ids, x",
                           (sequences ? ", sequence" : ""));
    const auto* const x = all.find("x");
    if (x == nullptr) return failure(errc::missing_tensor, "x", "missing; it is F32 (T, ", width, ")");
    if (x->type != tiffin::dtype::f32 || x->shape.rank() != 2 || x->shape[1] != width)
        return failure(errc::shape, "x", "is ", name_of(x->type), " of shape ", to_string(x->shape),
                       "; it must be F32 (T, ", width, ")");
    given_tokens made;
    made.x.resize(x->shape.elements());
    tiffin::read_as_f32(*x, 0, made.x.size(), made.x.data());
    const std::size_t tokens = x->shape[0];
    const auto ids = integers(all, "token_ids", tokens, static_cast<std::int64_t>(ids_known) - 1);
    if (!ids) return ids.failure();
    if (ids->size() != tokens)
        return failure(errc::shape, "token_ids", "are ", ids->size(), "; x has ", tokens, " rows");
    made.ids.assign(ids->begin(), ids->end());
    made.sequence_of.assign(tokens, 0);
    if (all.find("sequence") == nullptr) return made;
    const auto of = integers(all, "sequence", tokens, static_cast<std::int64_t>(tokens) - 1);
    if (!of) return of.failure();
    made.sequence_of.assign(of->begin(), of->end());
    for (const std::uint32_t s : made.sequence_of)
        made.sequences = std::max<std::size_t>(made.sequences, s + std::size_t{1});
    return made;
}

// Qwen's n-gram PLE, for any number of sequences.
template <class Backend>
status run_ngrams(const arguments& args, const tiffin::io::ngram_memory& found,
                  const tiffin::io::safetensors_file& input, const Backend& backend) {
    const auto of_model = [&](const failure& f) { return failure(f.code, args.model, f.message()); };
    auto memory = tiffin::memory_branches::prepare<tiffin::signed_root_gate>(
        found.tensors, found.branches, backend, {.eps = found.eps, .dilation = found.dilation});
    if (!memory) return of_model(memory.failure());
    const auto table = tiffin::mapped_file::open(found.table);
    if (!table) return table.failure();
    const auto address = tiffin::ngram_addresses<tiffin::qwen_hash>::of(found.hash, found.hash.end);
    if (!address) return of_model(address.failure());
    auto rows = tiffin::ngram_rows::of(std::vector<tiffin::ngram_table>(address->tables(), {*table}));
    if (!rows) return of_model(rows.failure());
    const std::size_t width = found.branches * memory->width(), heads = address->tables();
    auto given = read_tokens(input.tensors(), found.hash.ids, width, true);
    if (!given) return failure(given.failure().code, input.label(), given.failure().message());

    const std::size_t tokens = given->ids.size(), batch = args.tokens_per_call(tokens);
    std::vector<tiffin::ngram_history> ids(given->sequences, tiffin::ngram_history(address->order()));
    std::vector<tiffin::row_history> past = memory->make_histories(given->sequences);
    std::vector<std::int64_t> addresses(heads * tokens);
    for (std::size_t first = 0; first < tokens; first += batch) {
        const std::size_t count = std::min(batch, tokens - first);
        const auto sequence_of = std::span(given->sequence_of).subspan(first, count);
        std::vector<std::int32_t> some(heads * count);
        if (status s = (*address)(std::span(given->ids).subspan(first, count), sequence_of, ids, some); !s)
            return s;
        const auto e = rows->gather(some);
        if (!e) return e.failure();
        const tiffin::matrix_view<float> x(given->x.data() + first * width, count, width);
        if (status s = (*memory)(x, *e, x, sequence_of, past); !s) return s;
        for (std::size_t i = 0; i < some.size(); ++i)
            addresses[i / count * tokens + first + i % count] = some[i];
    }
    tiffin::io::safetensors_writer writer;
    writer.add("rows", {addresses.data(), tiffin::dtype::i64, {heads, tokens}});
    writer.add("y", {given->x.data(), tiffin::dtype::f32, {tokens, width}});
    return writer.write(args.output);
}

// A Gemma layer's PLE.
template <class Backend>
status run_per_layer(const arguments& args, const tiffin::io::per_layer_memory& found,
                     const tiffin::io::safetensors_file& input, const Backend& backend) {
    const auto block = tiffin::compose<typename Backend::machine>(found.composition, tiffin::all_policies);
    if (!block) return block.failure();
    auto layer = tiffin::try_prepare(*block, found.tensors, backend);
    if (!layer) return failure(layer.failure().code, args.model, layer.failure().message());
    const auto table = tiffin::mapped_file::open(found.table);
    if (!table) return table.failure();
    auto given = read_tokens(input.tensors(), found.table.shape.rows, layer->d_model(), false);
    if (!given) return failure(given.failure().code, input.label(), given.failure().message());
    tiffin::prefetched_rows rows(*table);
    const std::size_t tokens = given->ids.size(), batch = args.tokens_per_call(tokens),
                      width = layer->d_model();
    for (std::size_t first = 0; first < tokens; first += batch) {
        const std::size_t count = std::min(batch, tokens - first);
        const auto ids = std::span<const std::int32_t>(given->ids).subspan(first, count);
        const auto of_call = rows.gather(ids);
        if (!of_call) return of_call.failure();
        const tiffin::matrix_view<float> x(given->x.data() + first * width, count, width);
        const tiffin::token_inputs in{.token_ids = ids, .gathered = {&*of_call, 1}};
        if (status s = layer->try_call(x, in, x); !s) return s;
    }
    tiffin::io::safetensors_writer writer;
    writer.add("y", {given->x.data(), tiffin::dtype::f32, {tokens, width}});
    return writer.write(args.output);
}

// Runs use(backend) on the backend that was asked for; tables are read in the format that they have.
template <class Use>
status on_backend(const arguments& args, const Use& use) {
    if (args.backend == "reference") return use(tiffin::reference{});
    return use(tiffin::simd<tiffin::f32, tiffin::any_format>{{}, tiffin::kept_as_given});
}

// What is wrong, or nothing; no output file then.
std::string run(const arguments& args) {
    if (std::string wrong = overwrites_model("MODEL", args.model, args.output); !wrong.empty()) return wrong;
    if (std::string wrong = overwritten("INPUT", args.input, args.output); !wrong.empty()) return wrong;
    const auto files = tiffin::io::open_gguf_files(args.model);
    if (!files) return files.failure().message();
    const auto input = tiffin::io::safetensors_file::open(args.input);
    if (!input) return input.failure().message();
    status done;
    if (args.layer) {
        const auto found = tiffin::io::find_per_layer_memory(*files, *args.layer);
        if (!found) return args.model + ": " + found.failure().message();
        done = on_backend(args,
                          [&](const auto& backend) { return run_per_layer(args, *found, *input, backend); });
        if (!done) return done.failure().message();
        std::printf(
            "layer %zu of %zu: rows of %zu %s of a table of %zu. Left out: attention, the FFN, what is done "
            "to the stream "
            "beside adding y.\n",
            *args.layer, found->layers, found->table.shape.width,
            std::string(name_of(found->table.shape.type)).c_str(), found->table.shape.rows);
        return "";
    }
    const auto found = tiffin::io::find_ngram_memory(*files);
    if (!found) return args.model + ": " + found.failure().message();
    done = on_backend(args, [&](const auto& backend) { return run_ngrams(args, *found, *input, backend); });
    if (!done) return done.failure().message();
    std::printf(
        "layer %zu: %zu rows of %zu %s per token, of a table of %zu, to %zu branches of the stream. Left "
        "out: attention, the "
        "FFN, how the branches are mixed.\n",
        found->layer, found->hash.tables(), found->table.shape.width,
        std::string(name_of(found->table.shape.type)).c_str(), found->table.shape.rows, found->branches);
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "runs the token-indexed memory of a GGUF model on given streams, and writes what is added to them:\n"
        "the n-gram PLE of qwen4exp, with the rows that it reads; or, with --layer, that of a layer of "
        "gemma3n\n"
        "or gemma4. The rest of the layer is left out (docs/models.md)");
    app.add_option("MODEL", args.model, "GGUF file, the first of a split model; its table is read in place")
        ->required();
    app.add_option("INPUT", args.input,
                   "Safetensors file with token_ids I64 or I32 (T), and x F32 (T, d_model), or of qwen4exp\n"
                   "(T, branches d_model) and sequence I64 or I32 (T), where the tokens are of more than one")
        ->required();
    app.add_option("OUTPUT", args.output,
                   "Safetensors file to write: y F32 as x, and rows I64 (heads, T) of qwen4exp")
        ->required();
    app.add_option("--layer", args.layer, "Layer of gemma3n or gemma4, from 0 on");
    app.add_option("--backend", args.backend, "reference (double) or simd")
        ->check(CLI::IsMember({"reference", "simd"}))
        ->capture_default_str();
    app.add_option("--batch", args.batch,
                   "Tokens per call, the past kept from call to call (default: all in one)")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
    return run_command_line(app, "run_memory", argc, argv, [&] { return run(args); });
}
