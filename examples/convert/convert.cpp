// Layer files from a model, and layer files back into a copy of one.
//
//     convert model.gguf --layer 3 layer.safetensors
//     convert model.gguf --all layers
//     convert layers/*.safetensors --into model.gguf changed.gguf
//     convert deepseek --constants constants.safetensors --token-map map.safetensors
//
// Streams: a few hundred kilobytes of numbers are in memory at a time, whatever the size of the model.
#include <tiffin/format/given_format.hpp>
#include <tiffin/io/file_mapping.hpp>
#include <tiffin/io/gguf.hpp>
#include <tiffin/io/model.hpp>
#include <tiffin/io/ngram_memory.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/quoted.hpp>

#include <CLI/CLI.hpp>

#include "../support/command_line.hpp"
#include "../support/distinct_files.hpp"
#include "../support/output.hpp"
#include "../support/progress_bar.hpp"
#include "gguf_writer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;
using tiffin::dtype;
using tiffin::tensor_view;
using tiffin::detail::in_quotes;

struct arguments {
    std::vector<std::string> files;
    std::string into, all, constants, token_map;
    std::vector<std::size_t> layers;
    std::optional<dtype> weights;  // none: as stored
};

[[noreturn]] void refuse(const std::string& what) {
    throw std::runtime_error(what);
}

// ---- a model's layers as layer files ----

// What became of tensors whose numbers were written in another format than the model has.
class conversions {
public:
    struct change {
        std::size_t tensors = 0;
        double error = 0;  // the largest, of the tensor's largest number
        std::string worst;
    };
    void add(dtype from, dtype to, double error, const std::string& where) {
        change& c = all_[{from, to}];
        if (c.tensors++ == 0 || error > c.error) c.worst = where;
        c.error = std::max(c.error, error);
    }
    void print(std::FILE* to) const {
        for (const auto& [formats, c] : all_) {
            std::fprintf(to, "%zu %s of %s written as %s: ", c.tensors, c.tensors == 1 ? "tensor" : "tensors",
                         std::string(name_of(formats.first)).c_str(),
                         std::string(name_of(formats.second)).c_str());
            if (c.error == 0)
                std::fprintf(to, "exact\n");
            else
                std::fprintf(to, "largest error %.2e of a tensor's largest number, in %s\n", c.error,
                             c.worst.c_str());
        }
    }

private:
    std::map<std::pair<dtype, dtype>, change> all_;
};

bool fits_layer_files(dtype type) {
    return type <= dtype::q4_0 && type != dtype::u8;
}

// The format that a tensor is written in. Norms, biases and routers stay as they are where layer files can hold them.
dtype format_of(const tiffin::weights::entry& e, const arguments& args, dtype kept) {
    const dtype type = e.tensor.type;
    const bool weight = e.tensor.shape.rank() >= 2 && !is_integer(type) && !e.name.ends_with("router.weight");
    if (weight && args.weights) return *args.weights;
    return fits_layer_files(type) ? type : weight ? kept : dtype::f32;
}

// The numbers of a tensor in another format. `done` is told how many numbers are written, and at the end the error.
tiffin::io::byte_source in_format(const tensor_view& from, dtype to, const std::string& name,
                                  const std::function<void(std::size_t)>& done,
                                  const std::function<void(double)>& finished) {
    return [=](const tiffin::io::byte_sink& sink) -> tiffin::status {
        return tiffin::with_format(to, [&](auto format) -> tiffin::status {
            using codec = decltype(format);
            constexpr std::size_t piece = std::size_t{1} << 15;
            std::vector<float> numbers(piece), written(piece);
            std::vector<typename codec::storage> blocks(piece / codec::block);
            float largest = 0, off = 0;
            const std::size_t all = from.shape.elements();
            for (std::size_t first = 0; first < all; first += piece) {
                const std::size_t count = std::min(piece, all - first);
                tiffin::read_as_f32(from, first, count, numbers.data());
                for (std::size_t i = 0; i < count; i += codec::block) {
                    auto& block = blocks[i / codec::block];
                    for (std::size_t k = i; k < i + codec::block; ++k)
                        if (!(std::abs(numbers[k]) <= codec::largest))
                            return tiffin::failure(tiffin::errc::value, name, "number ", first + k, " is ",
                                                   std::to_string(numbers[k]), ", which ", name_of(to),
                                                   " cannot hold");
                    codec::encode(numbers.data() + i, block);
                    codec::decode(block, written.data() + i);
                }
                for (std::size_t i = 0; i < count; ++i) {
                    largest = std::max(largest, std::abs(numbers[i]));
                    off = std::max(off, std::abs(numbers[i] - written[i]));
                }
                if (!sink(blocks.data(), count / codec::block * sizeof blocks[0])) return {};
                done(count);
            }
            finished(largest > 0 ? static_cast<double>(off) / static_cast<double>(largest) : 0);
            return {};
        });
    };
}

void write_layer(const tiffin::io::model& model, std::size_t index, tiffin::io::unfinished_file to,
                 const arguments& args, conversions& changed, const std::function<void(double)>& progress) {
    const auto layer = model.layer(index).or_throw();
    // Blocks that weights can be kept in, but no layer file, become those of the most bits.
    const dtype kept = fits_layer_files(kept_format(layer)) ? kept_format(layer) : dtype::q8_0;
    tiffin::io::safetensors_writer writer;
    for (const auto& [key, value] : layer.options) writer.set(key, value);
    std::size_t all = 1, done = 0;
    for (const auto& e : layer.tensors.entries()) all += e.tensor.shape.elements();
    for (const auto& e : layer.tensors.entries()) {
        const dtype from = e.tensor.type, format = format_of(e, args, kept);
        if (from == format && !e.tensor.scales.any()) {
            writer.add(e.name, e.tensor);
            continue;
        }
        writer.add(e.name, format, e.tensor.shape,
                   in_format(
                       e.tensor, format, e.name,
                       [&](std::size_t numbers) {
                           done += numbers;
                           progress(static_cast<double>(done) / static_cast<double>(all));
                       },
                       [&changed, from, format, where = e.name + " of layer " + std::to_string(index)](
                           double error) { changed.add(from, format, error, where); }));
    }
    tiffin::status written = writer.write(to);
    if (written) written = to.finish();
    if (!written && written.failure().code == tiffin::errc::value)
        refuse(model.label() + ": layer " + std::to_string(index) + ": " + written.failure().message());
    std::move(written).or_throw();
    progress(1);
}

void take_out(const arguments& args) {
    const auto model = tiffin::io::model::open(args.files[0]).or_throw();
    conversions changed;
    std::FILE* to = stdout;
    progress_bar bar;
    const auto check = [&](const fs::path& path) {
        const std::string wrong = overwrites_model("MODEL", args.files[0], path.string());
        if (!wrong.empty()) refuse(wrong);
        check_output(path);
    };
    const auto write = [&](std::size_t index, const fs::path& path, double first, double share) {
        write_layer(model, index, begin_output(path), args, changed,
                    [&](double done) { bar.show(first + share * done, "layer " + std::to_string(index)); });
    };
    if (args.all.empty()) {
        check(args.files[1]);
        to = told_beside(tiffin::io::output_place::of(args.files[1]).or_throw());
        write(args.layers[0], args.files[1], 0, 1);
    } else {
        fs::create_directories(args.all);
        const std::size_t digits = std::to_string(model.layers() - 1).size();
        const double share = 1 / static_cast<double>(model.layers());
        std::vector<fs::path> paths;
        for (std::size_t i = 0; i < model.layers(); ++i) {
            std::string number = std::to_string(i);
            number.insert(0, digits - number.size(), '0');
            paths.push_back(fs::path(args.all) / ("layer_" + number + ".safetensors"));
            check(paths.back());
        }
        for (std::size_t i = 0; i < model.layers(); ++i)
            write(i, paths[i], share * static_cast<double>(i), share);
    }
    changed.print(to);
}

// ---- layer files back into a GGUF model ----

// The tensor of a GGUF file, behind "blk.{i}.", that one of a block's is, or which part of it.
struct place {
    std::string tensor;
    std::size_t part = 0;
};

place place_of(const std::string& name, bool gate_in_up) {
    if (name == "router.weight") return {"ffn_gate_inp.weight"};
    if (name == "router.selection_bias") return {"exp_probs_b.bias"};
    if (gate_in_up && name == "gate_proj.weight") return {"ffn_up.weight", 0};
    if (gate_in_up && name == "up_proj.weight") return {"ffn_up.weight", 1};
    std::string rest = name, suffix;
    std::size_t part = 0;
    if (name.starts_with("experts.")) {
        std::size_t digits = 0;
        part = std::stoul(name.substr(8), &digits);
        rest = name.substr(8 + digits + 1);
        suffix = "_exps";
    } else if (name.starts_with("shared.")) {
        rest = name.substr(7);
        suffix = "_shexp";
    }
    const std::size_t end = rest.find("_proj.");
    return {"ffn_" + rest.substr(0, end) + suffix + rest.substr(std::min(end + 5, rest.size())), part};
}

// A layer file says what the model's layer says, and has its tensors.
void check_alike(const tiffin::io::safetensors_file& file, const tiffin::io::described_layer& layer,
                 const std::string& of_model) {
    for (const auto& [key, value] : layer.options) {
        const auto told = file.metadata().find(key);
        if (told == file.metadata().end())
            refuse(file.label() + ": metadata " + in_quotes(key) + " is missing; " + of_model + " has " +
                   in_quotes(value));
        if (told->second != value)
            refuse(file.label() + ": metadata " + in_quotes(key) + " is " + in_quotes(told->second) + "; " +
                   of_model + " has " + in_quotes(value));
    }
    for (const auto& [key, value] : file.metadata())
        if (key != "format" && !layer.options.contains(key))
            refuse(file.label() + ": metadata " + in_quotes(key) + " = " + in_quotes(value) + ": " +
                   of_model + " has no such option");
    for (const auto& e : layer.tensors.entries())
        if (file.tensors().find(e.name) == nullptr)
            refuse(file.label() + ": " + e.name + " is missing; " + of_model + " has it");
    for (const auto& e : file.tensors().entries())
        if (layer.tensors.find(e.name) == nullptr)
            refuse(file.label() + ": " + in_quotes(e.name) + ": " + of_model + " has no such tensor");
}

void put_back(const arguments& args) {
    tiffin::io::unfinished_file output = begin_output(args.files.back());
    const auto model = tiffin::io::model::open(args.into).or_throw();
    const auto mapped = tiffin::io::file_mapping::open(args.into).or_throw();
    const auto header = tiffin::io::gguf_file::read(mapped.bytes(), args.into).or_throw();
    if (header.find<std::uint64_t>("split.count").value_or(1) > 1)
        refuse(args.into + ": is one file of a split model; join them first (llama-gguf-split --merge)");
    auto writer = gguf_files::gguf_writer::from(mapped.bytes(), args.into).or_throw();
    std::vector<tiffin::io::safetensors_file> files;
    std::size_t tensors = 0;
    for (std::size_t n = 0; n + 1 < args.files.size(); ++n) {
        const std::size_t index = args.layers.empty() ? n : args.layers[n];
        const auto layer = model.layer(index).or_throw();
        files.push_back(tiffin::io::safetensors_file::map(args.files[n]).or_throw());
        const auto& file = files.back();
        check_alike(file, layer, "layer " + std::to_string(index) + " of " + args.into);
        const std::string prefix = "blk." + std::to_string(index) + ".";
        const bool gate_in_up = layer.tensors.find("gate_proj.weight") != nullptr &&
                                header.tensors().find(prefix + "ffn_gate.weight") == nullptr;
        std::map<std::string, std::map<std::size_t, tensor_view>> places;
        for (const auto& e : file.tensors().entries()) {
            const place at = place_of(e.name, gate_in_up);
            places[prefix + at.tensor][at.part] = e.tensor;
        }
        for (const auto& [name, all] : places) {
            std::vector<tensor_view> parts;
            for (const auto& part : all) parts.push_back(part.second);
            if (const tiffin::status s = writer.replace(name, parts); !s)
                refuse(file.label() + ": " + s.failure().message());
            ++tensors;
        }
    }
    {
        progress_bar bar;
        const auto progress = [&](std::size_t done, std::size_t bytes) {
            bar.show(static_cast<double>(done) / static_cast<double>(bytes), output.label());
        };
        writer.write(output, progress).or_throw();
        output.finish().or_throw();
    }
    std::fprintf(told_beside(output.place()), "%zu tensors of %zu %s replaced\n", tensors, files.size(),
                 files.size() == 1 ? "layer" : "layers");
}

// What is wrong with the command line, or nothing.
// The constants of the rows by the last ids of all layers, which files of the same model may lack.
void write_constants(const arguments& args) {
    std::vector<std::int64_t> multipliers, primes, offsets;
    tiffin::io::ngram_memory one;
    std::size_t written = 0;
    do {
        const auto layer = written == 0 ? std::optional<std::size_t>() : one.layers[written];
        one = tiffin::io::find_ngram_memory(args.files[0], {.layer = layer, .constants = args.token_map})
                  .or_throw();
        const tiffin::engram_hash& hash = one.hash;
        multipliers.insert(multipliers.end(), hash.multipliers.begin(), hash.multipliers.end());
        for (const auto& of_length : hash.primes)
            primes.insert(primes.end(), of_length.begin(), of_length.end());
        offsets.insert(offsets.end(), hash.offsets.begin(), hash.offsets.end());
    } while (++written < one.layers.size());
    const auto of_layers = [&](const std::vector<std::int64_t>& all) {
        return tensor_view{all.data(), dtype::i64, {written, all.size() / written}};
    };
    const std::int64_t pad = one.hash.pad;
    tiffin::io::safetensors_writer writer;
    writer.add("multipliers", of_layers(multipliers)).add("primes", of_layers(primes));
    writer.add("offsets", of_layers(offsets)).add("pad_id", {&pad, dtype::i64, {1}});
    if (!one.hash.compressed.empty())
        writer.add("token_map", {one.hash.compressed.data(), dtype::i32, {one.hash.compressed.size()}});
    writer.write(args.constants).or_throw();
    std::printf("%zu layers: %zu multipliers, %zu primes, %zu ids\n", written, multipliers.size(),
                primes.size(), one.hash.vocab());
}

std::string check(const arguments& args) {
    const std::size_t files = args.files.size();
    if (!args.constants.empty()) {
        if (files != 1 || !args.layers.empty() || !args.all.empty() || !args.into.empty() || args.weights)
            return "--constants takes MODEL alone, and --token-map";
        if (std::string wrong = overwritten("--token-map", args.token_map, args.constants); !wrong.empty())
            return wrong;
        return overwrites_model("MODEL", args.files[0], args.constants);
    }
    if (!args.token_map.empty()) return "--token-map is for --constants";
    if (!args.into.empty()) {
        if (!args.all.empty()) return "--into and --all exclude each other";
        if (args.weights) return "--weights is for layer files; --into writes the formats that those have";
        if (files < 2) return "--into needs layer files, and OUT behind them";
        if (!args.layers.empty() && args.layers.size() != files - 1)
            return "--layer is given " + std::to_string(args.layers.size()) + " times for " +
                   std::to_string(files - 1) + " layer files";
        if (std::set<std::size_t>(args.layers.begin(), args.layers.end()).size() != args.layers.size())
            return "--layer names a layer twice";
        for (std::size_t i = 0; i + 1 < files; ++i)
            if (std::string wrong = overwritten("LAYER", args.files[i], args.files.back()); !wrong.empty())
                return wrong;
        return overwrites_model("MODEL", args.into, args.files.back());
    }
    if (!args.all.empty())
        return files == 1 && args.layers.empty() ? "" : "--all takes MODEL alone, without OUT and --layer";
    return files == 2 && args.layers.size() == 1 ? "" : "needs MODEL, --layer and OUT; or --all; or --into";
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "Writes the FFN blocks of a model's layers as layer files, and puts layer files back into a GGUF "
        "model:\n"
        "  convert MODEL --layer I OUT         layer I, from 0 on, as the layer file OUT\n"
        "  convert MODEL --all FOLDER          every layer, as FOLDER/layer_<I>.safetensors\n"
        "  convert LAYER... --into MODEL OUT   a copy OUT of the GGUF file MODEL with the FFNs of the layer "
        "files:\n"
        "                                      those of its first layers, or of those that --layer names in "
        "turn;\n"
        "                                      everything else is copied byte for byte\n"
        "  convert MODEL --constants OUT       what addresses the rows of an n-gram memory: multipliers, "
        "primes, offsets,\n"
        "                                      the map of ids, for a file of the model that lacks them\n"
        "A block is what lies between the norm before the FFN and the residual (docs/models.md). Formats "
        "that layer\n"
        "files cannot hold, such as Q4_1, become Q8_0, or F32 beside others than blocks; what that changes "
        "is printed.");
    app.add_option("FILES", args.files,
                   "MODEL: a GGUF file, the first of a split model, or a checkpoint's folder; OUT; LAYER")
        ->required();
    app.add_option("--layer", args.layers, "Layer, from 0 on; with --into once for each LAYER")
        ->allow_extra_args(false)
        ->check(in_range(layer_numbers));
    app.add_option("--all", args.all, "Folder for a layer file of every layer");
    app.add_option("--into", args.into, "GGUF file that the layers are put into a copy of");
    app.add_option("--constants", args.constants,
                   "Safetensors file for the constants of a model's n-gram memory")
        ->check(not_empty());
    app.add_option("--token-map", args.token_map,
                   "Safetensors file with token_map (V), which DeepSeek's checkpoints do not have")
        ->check(not_empty());
    const std::map<std::string, std::optional<dtype>> formats{
        {"as-stored", std::nullopt}, {"f32", dtype::f32},   {"bf16", dtype::bf16},
        {"f16", dtype::f16},         {"q8_0", dtype::q8_0}, {"q4_0", dtype::q4_0}};
    app.add_option_function<std::string>(
           "--weights", [&](const std::string& given) { args.weights = formats.at(given); },
           "Number format of matrices and tables; routers, norms and biases stay as they are (default: "
           "as-stored)")
        ->check(CLI::IsMember({"as-stored", "f32", "bf16", "f16", "q8_0", "q4_0"}));
    return run_command_line(app, "convert", argc, argv, [&] {
        std::string wrong = check(args);
        if (!wrong.empty()) return wrong;
        if (!args.constants.empty())
            write_constants(args);
        else
            args.into.empty() ? take_out(args) : put_back(args);
        return wrong;
    });
}
