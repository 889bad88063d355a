// Runs what needs the tokens that came before on given inputs: rows by the last ids, the short convolution, blocks whose
// results arrive layers later. The tool that checks them, as run_layer does layers.
#include <tiffin/call/short_convolution.hpp>
#include <tiffin/io/layer_options.hpp>
#include <tiffin/io/ngram_layer.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/table/ngram_addresses.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>

#include "support/command_line.hpp"
#include "support/distinct_files.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace {

using tiffin::errc;
using tiffin::failure;
using tiffin::result;
using tiffin::status;
using tiffin::io::layer_options;

struct arguments {
    std::string layer, input, output;
    std::string backend = "simd";
    std::int64_t batch = 0;
};

// The tensors of a file. Those that nobody asks for are errors.
class tensors_of_file {
public:
    // `may_be_empty`: of an input there may be no token.
    tensors_of_file(const tiffin::io::safetensors_file& file, bool may_be_empty)
        : all_(file.tensors()), may_be_empty_(may_be_empty) {}

    [[nodiscard]] const tiffin::weights& all() const noexcept { return all_; }
    [[nodiscard]] bool has(const std::string& name) const { return all_.find(name) != nullptr; }
    result<const tiffin::tensor_view*> need(const std::string& name, const char* shape, std::size_t rank) {
        const auto* const t = all_.find(name);
        asked_.insert(name);
        if (t == nullptr) return failure(errc::missing_tensor, name, "missing; it has shape ", shape);
        if (t->shape.rank() != rank)
            return failure(errc::shape, name, "has shape ", to_string(t->shape), "; it must be ", shape);
        if (!may_be_empty_ && t->shape.elements() == 0)
            return failure(errc::shape, name, "has shape ", to_string(t->shape), "; no axis may be 0");
        return t;
    }
    // A tensor (n) of I32 or I64, each number in [least, most].
    result<std::vector<std::int64_t>> integers(const std::string& name, std::int64_t least,
                                               std::int64_t most) {
        const auto t = need(name, "(n)", 1);
        if (!t) return t.failure();
        return tiffin::io::detail::integers_of(**t, name, least, most);
    }
    // A tensor of F32 of so many axes. Copied, since a file's bytes need not be aligned.
    result<std::vector<float>> numbers(const std::string& name, const char* shape, std::size_t rank) {
        const auto t = need(name, shape, rank);
        if (!t) return t.failure();
        if ((*t)->type != tiffin::dtype::f32)
            return failure(errc::dtype, name, "has dtype ", name_of((*t)->type), "; it must be F32");
        std::vector<float> made((*t)->shape.elements());
        read_as_f32(**t, 0, made.size(), made.data());
        return made;
    }
    // Tensors that someone else reads: one, and all whose names begin so.
    void mark_read(const std::string& name) { asked_.insert(name); }
    void mark_all_read(const std::string& prefix) {
        for (const auto& [name, tensor] : all_.entries())
            if (name.starts_with(prefix)) asked_.insert(name);
    }
    [[nodiscard]] status check_all_used() const {
        for (const auto& [name, tensor] : all_.entries())
            if (!asked_.contains(name)) return failure(errc::unused_tensor, name, "not read");
        return {};
    }

private:
    const tiffin::weights& all_;
    bool may_be_empty_;
    std::set<std::string> asked_;
};

// What a run has beside its kind.
struct run_of_a_file {
    const arguments& args;
    const std::string& input_label;
    const std::map<std::string, std::string>& metadata;
    layer_options options;
    tensors_of_file layer, input;
    tiffin::io::safetensors_writer writer{};
    std::string wrong_elsewhere{};  // the message, where it is not of LAYER

    status write() {
        status s = writer.write(args.output);
        if (!s) wrong_elsewhere = s.failure().message();
        return s;
    }
    status of_input(const failure& f) {
        wrong_elsewhere = input_label + ": " + f.message();
        return f;
    }
    // Calls use(first, count) for each call's tokens.
    template <class Use>
    status each_call(std::size_t tokens, const Use& use) const {
        const std::size_t batch =
            args.batch > 0 ? static_cast<std::size_t>(args.batch) : std::max<std::size_t>(tokens, 1);
        for (std::size_t first = 0; first < tokens; first += batch)
            if (status s = use(first, std::min(batch, tokens - first)); !s) return s;
        return {};
    }
    // The sequence of each of the tokens, and how many there are.
    result<std::pair<std::vector<std::uint32_t>, std::size_t>> sequences(std::size_t tokens) {
        if (!input.has("sequence")) return std::pair{std::vector<std::uint32_t>(tokens), std::size_t{1}};
        const auto given = input.integers("sequence", 0, static_cast<std::int64_t>(tokens) - 1);
        if (!given) return given.failure();
        if (given->size() != tokens)
            return failure(errc::shape, "sequence", "has shape (", given->size(), "); there are ", tokens,
                           " tokens");
        std::vector<std::uint32_t> of(given->begin(), given->end());
        const std::size_t count = of.empty() ? 1 : *std::max_element(of.begin(), of.end()) + std::size_t{1};
        return std::pair{std::move(of), count};
    }
};

// An option that must be there, a whole number from 1 up.
status need_count(layer_options& options, const std::string& key, std::size_t& to) {
    if (options.find(key) == nullptr) return failure(errc::option, key, "missing; a whole number from 1 up");
    return options.read(key, to);
}
template <class Hash>
status run_addresses(run_of_a_file& run, const tiffin::ngram_addresses<Hash>& address) {
    const auto given = run.input.integers("token_ids", 0, static_cast<std::int64_t>(address.vocab()) - 1);
    if (!given) return run.of_input(given.failure());
    const auto sequences = run.sequences(given->size());
    if (!sequences) return run.of_input(sequences.failure());
    if (status s = run.input.check_all_used(); !s) return run.of_input(s.failure());
    const std::size_t tokens = given->size(), tables = address.tables();
    const std::vector<std::int32_t> ids(given->begin(), given->end());
    std::vector<tiffin::ngram_history> past(sequences->second, tiffin::ngram_history(address.order()));
    std::vector<std::int64_t> rows(tables * tokens), sizes;
    for (std::size_t i = 0; i < tables; ++i) sizes.push_back(static_cast<std::int64_t>(address.rows(i)));
    const status called = run.each_call(tokens, [&](std::size_t first, std::size_t count) -> status {
        std::vector<std::int32_t> some(tables * count);
        if (status s = address(std::span(ids).subspan(first, count),
                               std::span(sequences->first).subspan(first, count), past, some);
            !s)
            return s;
        for (std::size_t i = 0; i < tables; ++i)
            std::copy_n(some.begin() + static_cast<std::ptrdiff_t>(i * count), count,
                        rows.begin() + static_cast<std::ptrdiff_t>(i * tokens + first));
        return {};
    });
    if (!called) return called;
    run.writer.add("rows", {rows.data(), tiffin::dtype::i64, {tables, tokens}});
    run.writer.add("sizes", {sizes.data(), tiffin::dtype::i64, {tables}});
    return run.write();
}

status run_addresses_of_file(run_of_a_file& run) {
    const auto layer = tiffin::io::read_ngram_layer({run.metadata, run.layer.all()});
    if (!layer) return layer.failure();
    return std::visit([&](const auto& address) { return run_addresses(run, address); }, layer->address);
}

status run_convolution(run_of_a_file& run) {
    std::size_t dilation = 0;
    float eps = 1e-5f;
    if (status s = need_count(run.options, "dilation", dilation); !s) return s;
    if (status s = run.options.read("eps", eps); !s) return s;
    if (status s = run.options.check_all_known("short_convolution"); !s) return s;
    auto v = run.input.numbers("v", "(T, width)", 2);
    if (!v) return run.of_input(v.failure());
    const tiffin::shape& of = run.input.all().find("v")->shape;
    // What lies farther back than there are tokens is missing, however far that is.
    const auto convolution = tiffin::short_convolution::prepare(
        run.layer.all(), std::min(dilation, std::max<std::size_t>(of[0], 1)), eps);
    if (!convolution) return convolution.failure();
    run.layer.mark_read("conv.weight");
    run.layer.mark_read("conv_norm.weight");
    if (status s = run.layer.check_all_used(); !s) return s;
    const std::size_t tokens = of[0], width = convolution->width();
    if (of[1] != width)
        return run.of_input(
            failure(errc::shape, "v", "has shape ", to_string(of), "; it must be (T, ", width, ")"));
    const auto sequences = run.sequences(tokens);
    if (!sequences) return run.of_input(sequences.failure());
    if (status s = run.input.check_all_used(); !s) return run.of_input(s.failure());
    std::vector<tiffin::row_history> past(sequences->second, convolution->make_history());
    const tiffin::matrix_view<float> rows(v->data(), tokens, width);  // onto its input
    const status called = run.each_call(tokens, [&](std::size_t first, std::size_t count) {
        const auto piece = rows.rows_from(first, count);
        return (*convolution)(piece, std::span(sequences->first).subspan(first, count), past, piece);
    });
    if (!called) return called;
    run.writer.add("y", {v->data(), tiffin::dtype::f32, {tokens, width}});
    return run.write();
}

// y of every layer of a forward pass over each call's tokens.
template <std::size_t Delay, class Backend>
status run_delayed_by(run_of_a_file& run, std::size_t layers, const Backend& backend) {
    using block = tiffin::delayed<tiffin::mlp, Delay>;
    std::vector<tiffin::layer<block, Backend>> network;
    for (std::size_t i = 0; i < layers; ++i) {
        const std::string prefix = "layers." + std::to_string(i) + ".";
        tiffin::weights given;
        for (const auto& [name, tensor] : run.layer.all().entries())
            if (name.starts_with(prefix)) given.add(name.substr(prefix.size()), tensor);
        auto made = tiffin::try_prepare<block>(given, backend);
        if (!made) return failure(made.failure().code, prefix + made.failure().where, made.failure().what);
        if (!network.empty() && made->d_model() != network[0].d_model())
            return failure(errc::shape, prefix + "up_proj.weight", "has d_model = ", made->d_model(),
                           "; layers.0. has ", network[0].d_model());
        network.push_back(*std::move(made));
        run.layer.mark_all_read(prefix);
    }
    if (status s = run.layer.check_all_used(); !s) return s;
    const auto x = run.input.numbers("x", "(layers, T, d_model)", 3);
    if (!x) return run.of_input(x.failure());
    const tiffin::shape& of = run.input.all().find("x")->shape;
    const std::size_t tokens = of[1], d_model = network[0].d_model();
    if (of[0] != layers || of[2] != d_model)
        return run.of_input(failure(errc::shape, "x", "has shape ", to_string(of), "; it must be (", layers,
                                    ", T, ", d_model, ")"));
    if (status s = run.input.check_all_used(); !s) return run.of_input(s.failure());
    std::vector<float> y(x->size());
    tiffin::carried_residuals carried(Delay, tokens, d_model);
    const status called = run.each_call(tokens, [&](std::size_t first, std::size_t count) -> status {
        carried.begin();
        for (std::size_t i = 0; i < layers; ++i) {
            const std::size_t at = (i * tokens + first) * d_model;
            if (status s = network[i].try_call(
                    tiffin::matrix_view<const float>(x->data() + at, count, d_model), {.carried = &carried},
                    tiffin::matrix_view<float>(y.data() + at, count, d_model));
                !s)
                return s;
        }
        return {};
    });
    if (!called) return called;
    run.writer.add("y", {y.data(), tiffin::dtype::f32, of});
    return run.write();
}

template <class Backend>
status run_delayed_on(run_of_a_file& run, const Backend& backend) {
    std::size_t delay = 0, layers = 0;
    if (status s = need_count(run.options, "delay", delay); !s) return s;
    if (status s = need_count(run.options, "layers", layers); !s) return s;
    if (status s = run.options.check_all_known("delayed"); !s) return s;
    switch (delay) {
        case 1: return run_delayed_by<1>(run, layers, backend);
        case 2: return run_delayed_by<2>(run, layers, backend);
        case 3: return run_delayed_by<3>(run, layers, backend);
        default: break;
    }
    return failure(errc::option, "delay", "is ", delay, "; this program delays by 1 to 3 layers");
}

status run_delayed(run_of_a_file& run) {
    return run.args.backend == "simd" ? run_delayed_on(run, tiffin::simd{})
                                      : run_delayed_on(run, tiffin::reference{});
}

// What is wrong, or nothing; no output file then.
std::string run(const arguments& args) {
    if (std::string wrong = overwritten("LAYER", args.layer, args.output); !wrong.empty()) return wrong;
    if (std::string wrong = overwritten("INPUT", args.input, args.output); !wrong.empty()) return wrong;
    const auto layer = tiffin::io::safetensors_file::open(args.layer);
    if (!layer) return layer.failure().message();
    const auto input = tiffin::io::safetensors_file::open(args.input);
    if (!input) return input.failure().message();
    run_of_a_file all{args,
                      input->label(),
                      layer->metadata(),
                      layer_options(layer->metadata()),
                      tensors_of_file(*layer, false),
                      tensors_of_file(*input, true)};
    constexpr std::pair<std::string_view, status (*)(run_of_a_file&)> kinds[]{
        {"engram_addresses", run_addresses_of_file},
        {"longcat_addresses", run_addresses_of_file},
        {"short_convolution", run_convolution},
        {"delayed", run_delayed}};
    const std::string* const block = all.options.find("block");
    std::string known;
    for (const auto& [name, of_kind] : kinds) {
        known.append(known.empty() ? "" : ", ").append(name);
        if (block == nullptr || *block != name) continue;
        const status s = of_kind(all);
        if (s) return "";
        return !all.wrong_elsewhere.empty() ? all.wrong_elsewhere
                                            : layer->label() + ": " + s.failure().message();
    }
    return layer->label() + ": block " +
           (block ? "is " + tiffin::io::detail::in_quotes(*block) : "is missing") + "; known are " + known;
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "writes to OUTPUT what needs the tokens before: the rows that the last ids address, the short "
        "convolution, or\n"
        "the results of delayed blocks (docs/layer_files.md)");
    app.add_option("LAYER", args.layer,
                   "Safetensors file: tensors, and in __metadata__ the block and its options")
        ->required();
    app.add_option("INPUT", args.input,
                   "Safetensors file with token_ids I64 or I32 (T), v F32 (T, width) or x F32 (layers, T, "
                   "d_model); and\n"
                   "sequence I64 or I32 (T), where the tokens are of more than one")
        ->required();
    app.add_option("OUTPUT", args.output, "Safetensors file to write: rows and sizes I64, or y F32")
        ->required();
    app.add_option("--backend", args.backend, "Of delayed blocks: reference (double) or simd")
        ->check(CLI::IsMember({"reference", "simd"}))
        ->capture_default_str();
    app.add_option("--batch", args.batch,
                   "Tokens per call, the past kept from call to call (default: all in one)")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
    return run_command_line(app, "run_sequence", argc, argv, [&] { return run(args); });
}
