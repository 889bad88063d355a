// How the example programs read a command line, and how they end.
#pragma once

#include <tiffin/quoted.hpp>

#include "number_range.hpp"
#include "signals.hpp"

#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <system_error>

// For the options whose value is a number, all of them: CLI11 itself takes -1 for 2^64 - 1, 010 for eight, and NaN. The
// help shows the range.
template <class T>
CLI::Validator in_range(const number_range<T>& range) {
    return {[range](std::string& text) { return range.read(text) ? "" : range.wrong(text); }, range.text()};
}
template <class T>
CLI::Validator in_range(T least, T most) {
    return in_range(number_range<T>{least, most});
}

// For texts and paths: an empty one would be taken for an option that was not given.
inline CLI::Validator not_empty() {
    return {[](std::string& text) { return text.empty() ? "the text is empty" : ""; }, ""};
}

// Parses the command line and runs. Whatever goes wrong is one line on the standard error, in printable ASCII
// whatever it quotes, and status 1. Signals end the program as they should (see watch_signals).
// run: what is wrong, or nothing. Texts are not_empty(), but for one.
template <class Run>
int run_command_line(CLI::App& app, const char* program, int argc, char** argv, const Run& run,
                     const CLI::Option* may_be_empty = nullptr) {
    watch_signals();
    std::string wrong;
    try {
        for (CLI::Option* const option : app.get_options())
            if (option != may_be_empty) option->check(not_empty());
        app.parse(argc, argv);
        wrong = run();
    } catch (const CLI::CallForHelp& help) {
        app.exit(help);
    } catch (const std::exception& e) {  // CLI::ParseError, or no memory
        wrong = e.what();
    }
    errno = 0;
    if (wrong.empty() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0))
        wrong = "the standard output cannot be written" +
                (errno != 0 ? ": " + std::generic_category().message(errno) : std::string());
    if (wrong.empty()) return 0;
    constexpr std::size_t limit = 16384;  // two paths, and a sentence
    std::fprintf(stderr, "%s: %s\n", program, tiffin::detail::printable(wrong, limit).c_str());
    return 1;
}
