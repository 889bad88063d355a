// Runs the token-indexed memory of a published model, on given inputs: the tool that checks it, as run_layer does FFNs. The
// table stays in the model's file.
#include <tiffin/all_policies.hpp>
#include <tiffin/io/longcat_memory.hpp>
#include <tiffin/io/memory_table.hpp>
#include <tiffin/io/model_architecture.hpp>
#include <tiffin/io/ngram_memory.hpp>
#include <tiffin/io/per_layer_memory.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/runtime/memory_branches.hpp>
#include <tiffin/table/cached_rows.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/ngram_addresses.hpp>
#include <tiffin/table/ngram_rows.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/table/row_store.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>

#include "support/command_line.hpp"
#include "support/distinct_files.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using tiffin::errc;
using tiffin::failure;
using tiffin::result;
using tiffin::status;

struct arguments {
    std::string model, input, output, constants;
    std::string backend = "simd", table = "mapped";
    std::int64_t batch = 0;
    std::optional<std::size_t> layer;

    [[nodiscard]] std::size_t tokens_per_call(std::size_t tokens) const noexcept {
        return batch > 0 ? static_cast<std::size_t>(batch) : std::max<std::size_t>(tokens, 1);
    }
};

// The rows of a table, read as --table says.
class table_rows {
public:
    static result<table_rows> open(const arguments& args, const tiffin::io::memory_table& table) {
        using mapped = tiffin::io::memory_rows<tiffin::mapped_file>;
        using direct = tiffin::io::memory_rows<tiffin::direct_file<>>;
        table_rows made;
        if (args.table == "mapped") {
            auto file = mapped::open(table);
            if (!file) return file.failure();
            made.keep(std::make_shared<const mapped>(*std::move(file)));
            return {std::move(made)};
        }
        auto file = direct::open(table, tiffin::file_cache::passed_by);
        if (!file) return file.failure();
        const auto rows = std::make_shared<const direct>(*std::move(file));
        made.keep(rows);
        if (args.table == "cached")
            made.keep(std::make_shared<const tiffin::cached_rows<direct>>(
                *rows, tiffin::cache_limit{.bytes = std::size_t{64} << 20}));
        return {std::move(made)};
    }
    [[nodiscard]] const tiffin::row_store_ref& store() const noexcept { return store_; }

private:
    template <class Store>
    void keep(const std::shared_ptr<const Store>& store) {
        store_ = tiffin::row_store_ref(*store);
        kept_.push_back(store);
    }
    std::vector<std::shared_ptr<const void>> kept_;
    tiffin::row_store_ref store_;  // the last of them
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

// `ids_known`: how many ids there are; `width`: of x, 0 where there is none; `sequences`: whether tokens may be of several.
result<given_tokens> read_tokens(const tiffin::weights& all, std::size_t ids_known, std::size_t width,
                                 bool sequences) {
    for (const auto& [name, tensor] : all.entries())
        if ((name != "x" || width == 0) && name != "token_ids" && (name != "sequence" || !sequences))
            return failure(errc::unused_tensor, name, "not read; known are token_ids",
                           (width == 0 ? "" : ", x"), (sequences ? ", sequence" : ""));
    given_tokens made;
    std::size_t tokens = 0;
    if (width > 0) {
        const auto* const x = all.find("x");
        if (x == nullptr) return failure(errc::missing_tensor, "x", "missing; it is F32 (T, ", width, ")");
        if (x->type != tiffin::dtype::f32 || x->shape.rank() != 2 || x->shape[1] != width)
            return failure(errc::shape, "x", "is ", name_of(x->type), " of shape ", to_string(x->shape),
                           "; it must be F32 (T, ", width, ")");
        made.x.resize(x->shape.elements());
        tiffin::read_as_f32(*x, 0, made.x.size(), made.x.data());
        tokens = x->shape[0];
    }
    const auto ids = integers(all, "token_ids", tokens, static_cast<std::int64_t>(ids_known) - 1);
    if (!ids) return ids.failure();
    if (width > 0 && ids->size() != tokens)
        return failure(errc::shape, "token_ids", "are ", ids->size(), "; x has ", tokens, " rows");
    tokens = ids->size();
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

// Calls use(first, count, rows of the tables) for the tokens of each call; returns the addresses (tables, T).
template <class Hash, class Use>
result<std::vector<std::int64_t>> for_calls(const tiffin::ngram_addresses<Hash>& address,
                                            const given_tokens& given, std::size_t batch,
                                            tiffin::ngram_rows& rows, const Use& use) {
    const std::size_t tokens = given.ids.size(), tables = address.tables();
    std::vector<tiffin::ngram_history> ids(given.sequences, tiffin::ngram_history(address.order()));
    std::vector<std::int64_t> addresses(tables * tokens);
    for (std::size_t first = 0; first < tokens; first += batch) {
        const std::size_t count = std::min(batch, tokens - first);
        const auto sequence_of = std::span(given.sequence_of).subspan(first, count);
        std::vector<std::int32_t> some(tables * count);
        if (status s = address(std::span(given.ids).subspan(first, count), sequence_of, ids, some); !s)
            return s.failure();
        const auto e = rows.gather(some);
        if (!e) return e.failure();
        if (status s = use(first, count, *e, sequence_of); !s) return s.failure();
        for (std::size_t i = 0; i < some.size(); ++i)
            addresses[i / count * tokens + first + i % count] = some[i];
    }
    return {std::move(addresses)};
}

status write_output(const arguments& args, const std::vector<float>& y, std::size_t tokens,
                    const std::vector<std::int64_t>& rows) {
    tiffin::io::safetensors_writer writer;
    if (!rows.empty()) writer.add("rows", {rows.data(), tiffin::dtype::i64, {rows.size() / tokens, tokens}});
    writer.add("y", {y.data(), tiffin::dtype::f32, {tokens, tokens == 0 ? 0 : y.size() / tokens}});
    return writer.write(args.output);
}

// Rows by the last ids, gated into the branches of a stream, for any number of sequences.
template <class Gate, class Backend>
status run_ngrams(const arguments& args, const tiffin::io::ngram_memory& found,
                  const tiffin::io::safetensors_file& input, const Backend& backend) {
    const auto of_model = [&](const failure& f) { return failure(f.code, args.model, f.message()); };
    auto memory = tiffin::memory_branches::prepare<Gate>(
        found.tensors, found.branches, backend,
        {.eps = found.eps, .convolution_eps = found.convolution_eps, .dilation = found.dilation});
    if (!memory) return of_model(memory.failure());
    const auto table = table_rows::open(args, found.table);
    if (!table) return table.failure();
    const auto address = tiffin::ngram_addresses<tiffin::engram_hash>::of(found.hash, found.end);
    if (!address) return of_model(address.failure());
    auto rows = tiffin::ngram_rows::of(std::vector<tiffin::ngram_table>(address->tables(), {table->store()}));
    if (!rows) return of_model(rows.failure());
    const std::size_t d = memory->width(), width = found.branches * d,
                      given_width = found.one_stream ? d : width;
    auto given = read_tokens(input.tensors(), found.hash.vocab(), given_width, true);
    if (!given) return failure(given.failure().code, input.label(), given.failure().message());

    const std::size_t tokens = given->ids.size();
    std::vector<tiffin::row_history> past = memory->make_histories(given->sequences);
    std::vector<float> branches;
    const auto addresses = for_calls(*address, *given, args.tokens_per_call(tokens), *rows,
                                     [&](std::size_t first, std::size_t count,
                                         const tiffin::matrix_view<const float>& e, auto sequence_of) {
                                         float* const x = given->x.data() + first * given_width;
                                         if (!found.one_stream) {
                                             const tiffin::matrix_view<float> all(x, count, width);
                                             return (*memory)(all, e, all, sequence_of, past);
                                         }
                                         branches.resize(count * width);
                                         for (std::size_t i = 0; i < branches.size(); ++i)
                                             branches[i] = x[i / width * d + i % d];
                                         const tiffin::matrix_view<float> all(branches.data(), count, width);
                                         if (status s = (*memory)(all, e, all, sequence_of, past); !s)
                                             return s;
                                         std::fill(x, x + count * d, 0.0f);
                                         for (std::size_t i = 0; i < branches.size(); ++i)
                                             x[i / width * d + i % d] += branches[i];
                                         return status();
                                     });
    if (!addresses) return addresses.failure();
    return write_output(args, given->x, tokens, *addresses);
}

// LongCat's embedding of words.
template <class Backend>
status run_longcat(const arguments& args, const tiffin::io::longcat_memory& found,
                   const tiffin::io::safetensors_file& input, const Backend& backend) {
    const auto of_model = [&](const failure& f) { return failure(f.code, args.model, f.message()); };
    const auto block = tiffin::compose<typename Backend::machine>(found.composition, tiffin::all_policies);
    if (!block) return block.failure();
    auto layer = tiffin::try_prepare(*block, found.tensors, backend);
    if (!layer) return of_model(layer.failure());
    std::vector<table_rows> stores;
    for (const tiffin::io::memory_table& table : found.tables) {
        auto opened = table_rows::open(args, table);
        if (!opened) return opened.failure();
        stores.push_back(*std::move(opened));
    }
    std::vector<tiffin::ngram_table> tables;
    for (const table_rows& rows : stores) tables.push_back({rows.store()});
    const auto address = tiffin::ngram_addresses<tiffin::longcat_hash>::of(found.hash, found.end);
    if (!address) return of_model(address.failure());
    auto rows = tiffin::ngram_rows::of(std::move(tables));
    if (!rows) return of_model(rows.failure());
    const std::size_t width = layer->d_model();
    const auto given = read_tokens(input.tensors(), found.hash.ids, 0, true);
    if (!given) return failure(given.failure().code, input.label(), given.failure().message());

    const std::size_t tokens = given->ids.size();
    std::vector<float> y(tokens * width);
    const auto addresses = for_calls(
        *address, *given, args.tokens_per_call(tokens), *rows,
        [&](std::size_t first, std::size_t count, const tiffin::matrix_view<const float>& e, auto) {
            const tiffin::matrix_view<float> to(y.data() + first * width, count, width);
            const auto ids = std::span<const std::int32_t>(given->ids).subspan(first, count);
            return layer->try_call(to, {.token_ids = ids, .per_layer_input = e}, to);  // x is not read
        });
    if (!addresses) return addresses.failure();
    return write_output(args, y, tokens, *addresses);
}

// A Gemma layer's PLE.
template <class Backend>
status run_per_layer(const arguments& args, const tiffin::io::per_layer_memory& found,
                     const tiffin::io::safetensors_file& input, const Backend& backend) {
    const auto block = tiffin::compose<typename Backend::machine>(found.composition, tiffin::all_policies);
    if (!block) return block.failure();
    auto layer = tiffin::try_prepare(*block, found.tensors, backend);
    if (!layer) return failure(layer.failure().code, args.model, layer.failure().message());
    const auto table = table_rows::open(args, {{found.table}, {}, {}});
    if (!table) return table.failure();
    auto given = read_tokens(input.tensors(), found.table.shape.rows, layer->d_model(), false);
    if (!given) return failure(given.failure().code, input.label(), given.failure().message());
    tiffin::prefetched_rows rows(table->store());
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
    return write_output(args, given->x, tokens, {});
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
    const auto architecture = tiffin::io::model_architecture(args.model);
    if (!architecture) return architecture.failure().message();
    const auto input = tiffin::io::safetensors_file::open(args.input);
    if (!input) return input.failure().message();
    const auto of_model = [&](const auto& found) {
        const std::string what = found.failure().message();
        return what.starts_with(args.model) ? what : args.model + ": " + what;
    };
    const auto format_of = [](const tiffin::table_shape& table) { return std::string(name_of(table.type)); };
    if (architecture->starts_with("gemma")) {
        const std::size_t index = args.layer.value_or(0);
        const auto found = tiffin::io::find_per_layer_memory(args.model, index);
        if (!found) return of_model(found);
        const status done = on_backend(
            args, [&](const auto& backend) { return run_per_layer(args, *found, *input, backend); });
        if (!done) return done.failure().message();
        std::printf(
            "layer %zu of %zu: rows of %zu %s of a table of %zu. Left out: attention, the FFN, what is done "
            "to the "
            "stream beside adding y.\n",
            index, found->layers, found->table.shape.width, format_of(found->table.shape).c_str(),
            found->table.shape.rows);
        return "";
    }
    if (architecture->starts_with("longcat")) {
        const auto found = tiffin::io::find_longcat_memory(args.model);
        if (!found) return of_model(found);
        const status done =
            on_backend(args, [&](const auto& backend) { return run_longcat(args, *found, *input, backend); });
        if (!done) return done.failure().message();
        std::printf(
            "the embedding of words with %zu rows of %zu %s per token, of as many tables. Left out: all "
            "layers.\n",
            found->tables.size(), found->tables[0].shape().width,
            format_of(found->tables[0].shape()).c_str());
        return "";
    }
    const auto found =
        tiffin::io::find_ngram_memory(args.model, {.layer = args.layer, .constants = args.constants});
    if (!found) return of_model(found);
    const status done = on_backend(args, [&](const auto& backend) {
        return found->copysign ? run_ngrams<tiffin::copysign_root_gate>(args, *found, *input, backend)
                               : run_ngrams<tiffin::signed_root_gate>(args, *found, *input, backend);
    });
    if (!done) return done.failure().message();
    const tiffin::table_shape table = found->table.shape();
    std::printf(
        "layer %zu: %zu rows of %zu %s per token, of a table of %zu, to %zu branches of the stream. Left "
        "out: attention, "
        "the FFN, how the branches are mixed.\n",
        found->layer, found->hash.tables(), table.width, format_of(table).c_str(), table.rows,
        found->branches);
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "runs the token-indexed memory of a model on given streams, and writes what is added to them: the "
        "n-gram PLE\n"
        "of qwen4exp, the Engram of deepseek41 or of an adapter of engram-peft, with the rows that each "
        "reads; the\n"
        "per-layer embedding of a layer of gemma3n or gemma4; the n-gram embedding of longcat. The rest of "
        "the model is\n"
        "left out (docs/models.md)");
    app.add_option("MODEL", args.model,
                   "GGUF file, the first of a split model, or the folder of a checkpoint or of an adapter; "
                   "its table is\n"
                   "read in place, as --table says")
        ->required();
    app.add_option(
           "INPUT", args.input,
           "Safetensors file with token_ids I64 or I32 (T); x F32 (T, branches d_model), or (T, d_model) of\n"
           "gemma and of an adapter, none of longcat; sequence I64 or I32 (T), where the tokens are of more "
           "than\n"
           "one, but of gemma")
        ->required();
    app.add_option("OUTPUT", args.output,
                   "Safetensors file to write: y F32, and rows I64 (heads, T) but of gemma")
        ->required();
    app.add_option("--layer", args.layer, "Layer, from 0 on (default: the first that has a memory)")
        ->check(in_range(layer_numbers));
    app.add_option(
           "--constants", args.constants,
           "Safetensors file of what the model lacks: token_map, multipliers, primes, offsets, pad_id")
        ->check(not_empty());
    app.add_option("--backend", args.backend, "reference (double) or simd")
        ->check(CLI::IsMember({"reference", "simd"}))
        ->capture_default_str();
    app.add_option("--table", args.table,
                   "How the table's rows are read: mapped (the file mapped into memory, its pages kept by "
                   "the system), "
                   "direct\n"
                   "(by reads around the system's page cache), or cached (the same, up to 64 MiB of each "
                   "table's rows "
                   "kept)")
        ->check(CLI::IsMember({"mapped", "direct", "cached"}))
        ->capture_default_str();
    app.add_option("--batch", args.batch,
                   "Tokens per call, the past kept from call to call (default: all in one)")
        ->check(in_range<std::int64_t>(1, std::int64_t{1} << 40));
    return run_command_line(app, "run_memory", argc, argv, [&] { return run(args); });
}
