// Tables of a file from a table a layer to one token-major table, all layers of a token side by side, and
// back.
//
//     convert_tables per_layer.safetensors joined.safetensors --to token-major
//
// Streams: a few megabytes of rows are in memory at a time, whatever the size of the tables.
#include <tiffin/io/table_file.hpp>
#include <tiffin/quoted.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/joined_columns.hpp>

#include <CLI/CLI.hpp>

#include "support/command_line.hpp"
#include "support/distinct_files.hpp"
#include "support/output.hpp"
#include "support/progress_bar.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <list>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using tiffin::direct_file;
using tiffin::table_location;
using tiffin::detail::in_quotes;
using tiffin::detail::printable;

struct arguments {
    std::string input, output;
    std::string to = "token-major";
    std::string layers = "stem_embeddings.{}.weight";
    std::string joined = "stem_embeddings.weight";
    std::size_t count = 0;
};

std::string layer_name(const std::string& pattern, std::size_t layer) {
    std::string name = pattern;
    return name.replace(name.find("{}"), 2, std::to_string(layer));
}

// The layers' tables in their order: all that there are, from number 0 on.
std::vector<std::string> layer_names(const tiffin::io::safetensors_file& file, const arguments& args) {
    const std::size_t hole = args.layers.find("{}");
    const std::string before = args.layers.substr(0, hole), after = args.layers.substr(hole + 2);
    const auto refuse = [&](const std::string& what) { throw std::runtime_error(args.input + ": " + what); };
    std::map<std::size_t, std::string> found;
    for (const tiffin::weights::entry& e : file.tensors().entries()) {
        if (e.name.size() <= before.size() + after.size() || !e.name.starts_with(before) ||
            !e.name.ends_with(after))
            continue;
        const std::string_view digits =
            std::string_view(e.name).substr(before.size(), e.name.size() - before.size() - after.size());
        if (digits.find_first_not_of("0123456789") != std::string_view::npos) continue;  // another tensor
        std::size_t number = 0;
        if (std::from_chars(digits.data(), digits.data() + digits.size(), number).ec != std::errc())
            refuse("tensor " + in_quotes(e.name) + " has a number above " +
                   std::to_string(std::numeric_limits<std::size_t>::max()));
        if (const auto [at, fresh] = found.emplace(number, e.name); !fresh)
            refuse("tensors " + in_quotes(at->second) + " and " + in_quotes(e.name) + " are both number " +
                   std::to_string(number));
    }
    if (found.empty()) refuse("has no tensor " + in_quotes(layer_name(args.layers, 0)));
    std::vector<std::string> names;
    for (const auto& [number, name] : found) {
        if (number != names.size())
            refuse("has no tensor " + in_quotes(layer_name(args.layers, names.size())) +
                   "; the next one is " + in_quotes(name) +
                   ", and a joined row cannot tell which numbers its layers had");
        // Nor how they were written, and --to per-layer would write them so.
        if (name != layer_name(args.layers, number))
            refuse("tensor " + in_quotes(name) + " is written with zeros before its number; " +
                   in_quotes(layer_name(args.layers, number)) + " is what is read and written");
        names.push_back(name);
    }
    return names;
}

// The metadata key that keeps the layers' widths, which a joined row does not show.
std::string columns_key(const arguments& args) {
    return args.joined + ".columns";
}

// Where the columns of each layer begin, and where the last ends.
std::vector<std::size_t> borders(const tiffin::io::safetensors_file& file, const arguments& args,
                                 const tiffin::table_shape& joined) {
    std::vector<std::size_t> at{0};
    const auto told = file.metadata().find(columns_key(args));
    if (args.count == 0 && told == file.metadata().end())
        throw std::runtime_error(args.input + ": metadata " + in_quotes(columns_key(args)) +
                                 " is missing; --count says how many layers of equal width there are");
    if (args.count != 0) {
        if (joined.width % args.count != 0)
            throw std::runtime_error("--count " + std::to_string(args.count) + ": rows have " +
                                     std::to_string(joined.width) + " numbers, which is no multiple");
        for (std::size_t i = 1; i <= args.count; ++i) at.push_back(joined.width / args.count * i);
        return at;
    }
    const char* const end = told->second.data() + told->second.size();
    for (const char* p = told->second.data(); p < end; ++p) {
        std::size_t width = 0;
        const auto [rest, bad] = std::from_chars(p, end, width);
        if (bad != std::errc() || width == 0 || (rest != end && *rest != ','))
            throw std::runtime_error(args.input + ": metadata " + in_quotes(told->first) + " = " +
                                     in_quotes(told->second) + " is not a list of widths");
        at.push_back(at.back() + width);
        p = rest;
    }
    if (at.back() != joined.width)
        throw std::runtime_error(args.input + ": metadata " + in_quotes(told->first) + " sums to " +
                                 std::to_string(at.back()) + "; rows have " + std::to_string(joined.width) +
                                 " numbers");
    return at;
}

void run(const arguments& args) {
    using namespace tiffin;
    if (args.layers.find("{}") == std::string::npos)
        throw std::runtime_error("--layers " + in_quotes(args.layers) +
                                 ": has no {} where the layer's number goes");
    const auto file = io::safetensors_file::map(args.input).or_throw();
    io::unfinished_file output = begin_output(args.output);
    progress_bar bar;
    io::safetensors_writer writer;
    std::list<direct_file<>> stores;
    std::vector<std::string> converted;
    const auto progress = [&](const std::string& name, double first, double share) {
        return [&bar, name = printable(name), first, share](std::size_t done, std::size_t rows) {
            bar.show(first + share * static_cast<double>(done) / static_cast<double>(rows), name);
        };
    };
    std::list<joined_columns> joins;
    std::string widths;
    if (args.to == "token-major") {
        std::vector<row_store_ref> parts;
        converted = layer_names(file, args);
        for (const std::string& name : converted) {
            stores.push_back(direct_file<>::open(io::find_table(file, name).or_throw()).or_throw());
            parts.emplace_back(stores.back());
            widths += (widths.empty() ? "" : ",") + std::to_string(stores.back().shape().width);
        }
        joins.push_back(joined_columns::of(parts).or_throw());
        io::add_table(writer, args.joined, joins.back(), progress(args.joined, 0, 1));
    } else {
        const table_location joined = io::find_table(file, args.joined).or_throw();
        converted.push_back(args.joined);
        const std::vector<std::size_t> at = borders(file, args, joined.shape);
        const double share = 1.0 / static_cast<double>(at.size() - 1);
        for (std::size_t layer = 0; layer + 1 < at.size(); ++layer) {
            stores.push_back(
                direct_file<>::open(joined.columns(at[layer], at[layer + 1] - at[layer]).or_throw())
                    .or_throw());
            const std::string name = layer_name(args.layers, layer);
            io::add_table(writer, name, stores.back(),
                          progress(name, share * static_cast<double>(layer), share));
        }
    }
    // What else the file says and holds goes over as it is.
    for (const auto& said : file.metadata())
        if (said.first != columns_key(args)) writer.set(said.first, said.second);
    for (const weights::entry& e : file.tensors().entries())
        if (std::find(converted.begin(), converted.end(), e.name) == converted.end())
            writer.add(e.name, e.tensor);
    if (!widths.empty()) writer.set(columns_key(args), widths);
    writer.write(output).or_throw();
    output.finish().or_throw();
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "Converts a table a layer to one token-major table, or back, without holding either in memory.");
    app.add_option("INPUT", args.input, "safetensors file")->required();
    app.add_option("OUTPUT", args.output, "safetensors file to write")->required();
    app.add_option("--to", args.to, "token-major or per-layer")
        ->check(CLI::IsMember({"token-major", "per-layer"}))
        ->capture_default_str();
    app.add_option("--layers", args.layers, "Names of the layers' tables, {} for the number")
        ->capture_default_str();
    app.add_option("--joined", args.joined, "Name of the token-major table")->capture_default_str();
    app.add_option("--count", args.count, "Layers of equal width, where the file does not tell the widths")
        ->check(in_range<std::size_t>(1, layer_numbers.most + 1));
    return run_command_line(app, "convert_tables", argc, argv, [&] {
        std::string wrong = overwritten("INPUT", args.input, args.output);
        if (wrong.empty()) run(args);
        return wrong;
    });
}
