// How the example programs that read a command line end.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>

// Parses the command line and runs. Whatever goes wrong is one line on the standard error, and status 1.
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
    std::fprintf(stderr, "%s: %s\n", program, wrong.c_str());
    return 1;
}
