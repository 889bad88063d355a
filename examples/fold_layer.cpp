// Folds the memories and modulators of a layer file to tables: what is deployed.
#include <tiffin/executor/thread_team.hpp>
#include <tiffin/io/fold_layer.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>

#include "support/command_line.hpp"
#include "support/distinct_files.hpp"
#include "support/output.hpp"
#include "support/progress_bar.hpp"

#include <cstddef>
#include <string>
#include <thread>

namespace {

struct arguments {
    std::string layer, output;
    std::size_t threads = std::thread::hardware_concurrency();
};

// What is wrong, or nothing.
std::string run(const arguments& args) {
    if (std::string wrong = overwritten("LAYER", args.layer, args.output); !wrong.empty()) return wrong;
    // Mapped: of the file no more than the rows being folded has to be in memory.
    const auto file = tiffin::io::safetensors_file::map(args.layer);
    if (!file) return file.failure().message();
    tiffin::io::unfinished_file output = begin_output(args.output);
    progress_bar bar;
    tiffin::thread_team team(args.threads);
    const auto folded = tiffin::io::folded_layer::from(
        *file,
        [&](std::size_t done, std::size_t rows) {
            bar.show(static_cast<double>(done) / static_cast<double>(rows),
                     std::to_string(done) + " of " + std::to_string(rows) + " rows");
        },
        team);
    if (!folded) return file->label() + ": " + folded.failure().message();
    tiffin::status written = folded->write(output);
    if (written) written = output.finish();
    return written ? "" : written.failure().message();
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "Folds the memories (meki) and modulators (retoken) of a layer file to tables, so that a token "
        "reads\n"
        "one row of each, and writes a layer file marked as folded. A folded file is refused.");
    app.add_option("LAYER", args.layer, "Layer file (safetensors, docs/layer_files.md)")->required();
    app.add_option("OUTPUT", args.output, "Layer file to write")->required();
    app.add_option("--threads", args.threads, "Threads (default: all)")->check(in_range(thread_counts));
    return run_command_line(app, "fold_layer", argc, argv, [&] { return run(args); });
}
