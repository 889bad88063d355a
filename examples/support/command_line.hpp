// How the example programs that read a command line end.
#pragma once

#include <tiffin/quoted.hpp>

#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>

// Parses the command line and runs. Whatever goes wrong is one line on the standard error, in printable ASCII
// whatever it quotes, and status 1.
// run: what is wrong, or nothing.
template <class Run>
int run_command_line(CLI::App& app, const char* program, int argc, char** argv, const Run& run) {
    std::string wrong;
    try {
        app.parse(argc, argv);
        wrong = run();
    } catch (const CLI::CallForHelp& help) {
        return app.exit(help);
    } catch (const std::exception& e) {  // CLI::ParseError, or no memory
        wrong = e.what();
    }
    if (wrong.empty()) return 0;
    constexpr std::size_t limit = 16384;  // two paths, and a sentence
    std::fprintf(stderr, "%s: %s\n", program, tiffin::detail::printable(wrong, limit).c_str());
    return 1;
}
