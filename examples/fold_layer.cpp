// Folds the memories and modulators of a layer file to tables: what is deployed.
#include <tiffin/executor/openmp.hpp>
#include <tiffin/io/fold_layer.hpp>
#include <tiffin/tiffin.hpp>

#include <CLI/CLI.hpp>

#include "support/progress_bar.hpp"

#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>

namespace {

struct arguments {
    std::string layer, output;
    int threads = 0;
};

int fail(const std::string& line) {
    std::fprintf(stderr, "fold_layer: %s\n", line.c_str());
    return 1;
}

int run(const arguments& args) {
    const auto file = tiffin::io::safetensors_file::open(args.layer);
    if (!file) return fail(file.failure().message());
    std::string wrong;
    {
        progress_bar bar;
        const auto folded = tiffin::io::folded_layer::from(
            *file,
            [&](std::size_t done, std::size_t rows) {
                bar.show(static_cast<double>(done) / static_cast<double>(rows),
                         std::to_string(done) + " of " + std::to_string(rows) + " rows");
            },
            tiffin::openmp{args.threads});
        if (!folded)
            wrong = file->label() + ": " + folded.failure().message();
        else if (const tiffin::status s = folded->write(args.output); !s)
            wrong = s.failure().message();
    }
    return wrong.empty() ? 0 : fail(wrong);
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app(
        "Folds the memories (meki) and modulators (retoken) of a layer file to tables, so that a token "
        "reads\n"
        "one row of each, and writes a layer file marked as folded. A folded file is refused.");
    app.add_option("LAYER", args.layer, "Layer file (safetensors, see the README)")->required();
    app.add_option("OUTPUT", args.output, "Layer file to write")->required();
    app.add_option("--threads", args.threads, "OpenMP threads (default: all)")->check(CLI::Range(1, 1024));
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
