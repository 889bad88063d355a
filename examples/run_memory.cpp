// Runs the memory of a published model that is addressed by the last token ids, on given inputs: the tool that checks it, as
// run_layer does FFNs. The table stays in the model's file.
#include <tiffin/io/gguf_model.hpp>
#include <tiffin/io/ngram_memory.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/runtime/memory_branches.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/ngram_rows.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>

#include "support/command_line.hpp"
#include "support/distinct_files.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
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

result<given_tokens> read_tokens(const tiffin::weights& all, const tiffin::io::ngram_memory& memory,
                                 std::size_t width) {
    for (const auto& [name, tensor] : all.entries())
        if (name != "x" && name != "token_ids" && name != "sequence")
            return failure(errc::unused_tensor, name, "not read; known are token_ids, x, sequence");
    const auto* const x = all.find("x");
    if (x == nullptr) return failure(errc::missing_tensor, "x", "missing; it is F32 (T, ", width, ")");
    if (x->type != tiffin::dtype::f32 || x->shape.rank() != 2 || x->shape[1] != width)
        return failure(errc::shape, "x", "is ", name_of(x->type), " of shape ", to_string(x->shape),
                       "; it must be F32 (T, ", width, "): ", memory.branches, " branches");
    given_tokens made;
    made.x.resize(x->shape.elements());
    tiffin::read_as_f32(*x, 0, made.x.size(), made.x.data());
    const std::size_t tokens = x->shape[0];
    const auto ids = integers(all, "token_ids", tokens, static_cast<std::int64_t>(memory.hash.ids) - 1);
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

template <class Backend>
status run_on(const arguments& args, const tiffin::io::ngram_memory& found, const tiffin::weights& input,
              const std::string& input_label, const Backend& backend) {
    auto memory = tiffin::memory_branches::prepare<tiffin::signed_root_gate>(
        found.tensors, found.branches, backend, {.eps = found.eps, .dilation = found.dilation});
    const auto of_model = [&](const failure& f) { return failure(f.code, args.model, f.message()); };
    if (!memory) return of_model(memory.failure());
    const auto table = tiffin::mapped_file::open(found.table);
    if (!table) return table.failure();
    const auto address = tiffin::ngram_addresses<tiffin::qwen_hash>::of(found.hash, found.hash.end);
    if (!address) return of_model(address.failure());
    auto rows = tiffin::ngram_rows::of(std::vector<tiffin::ngram_table>(address->tables(), {*table}));
    if (!rows) return rows.failure();
    const std::size_t width = found.branches * memory->width(), heads = address->tables();
    auto given = read_tokens(input, found, width);
    if (!given) return failure(given.failure().code, input_label, given.failure().message());

    const std::size_t tokens = given->ids.size();
    const std::size_t batch =
        args.batch > 0 ? static_cast<std::size_t>(args.batch) : std::max<std::size_t>(tokens, 1);
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

// What is wrong, or nothing; no output file then.
std::string run(const arguments& args) {
    if (std::string wrong = overwrites_model("MODEL", args.model, args.output); !wrong.empty()) return wrong;
    if (std::string wrong = overwritten("INPUT", args.input, args.output); !wrong.empty()) return wrong;
    const auto files = tiffin::io::open_gguf_files(args.model);
    if (!files) return files.failure().message();
    const auto found = tiffin::io::find_ngram_memory(*files);
    if (!found) return args.model + ": " + found.failure().message();
    const auto input = tiffin::io::safetensors_file::open(args.input);
    if (!input) return input.failure().message();
    const status s = args.backend == "simd"
                         ? run_on(args, *found, input->tensors(), input->label(), tiffin::simd{})
                         : run_on(args, *found, input->tensors(), input->label(), tiffin::reference{});
    if (!s) return s.failure().message();
    std::printf(
        "layer %zu: %zu rows of %zu per token, of a table of %zu in %s, to %zu branches of the stream. Left "
        "out: the "
        "layer's attention, its FFN, and how the branches are mixed.\n",
        found->layer, found->hash.tables(), found->table.shape.width, found->table.shape.rows,
        std::string(name_of(found->table.shape.type)).c_str(), found->branches);
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "runs the memory of a GGUF model that is addressed by the last token ids (qwen4exp) on given "
        "streams, and writes the\n"
        "rows that were read and what is added to the streams; the rest of the layer is left out "
        "(docs/models.md)");
    app.add_option("MODEL", args.model, "GGUF file, the first of a split model; its table is read in place")
        ->required();
    app.add_option("INPUT", args.input,
                   "Safetensors file with token_ids I64 or I32 (T), x F32 (T, branches d_model), and "
                   "sequence I64 or I32\n"
                   "(T), where the tokens are of more than one")
        ->required();
    app.add_option("OUTPUT", args.output, "Safetensors file to write: rows I64 (heads, T), y F32 as x")
        ->required();
    app.add_option("--backend", args.backend, "reference (double) or simd")
        ->check(CLI::IsMember({"reference", "simd"}))
        ->capture_default_str();
    app.add_option("--batch", args.batch,
                   "Tokens per call, the past kept from call to call (default: all in one)")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
    return run_command_line(app, "run_memory", argc, argv, [&] { return run(args); });
}
