// The outputs of programs: which are none, and texts.
#pragma once

#include <tiffin/io/unfinished_file.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <string>
#include <string_view>

// Begins an output before the work that it is for: what is wrong with it is told at once. Throws std::runtime_error.
inline tiffin::io::unfinished_file begin_output(const std::filesystem::path& path) {
    auto begun = tiffin::io::unfinished_file::begin(path);
    if (!begun) throw std::runtime_error(begun.failure().message());
    return *std::move(begun);
}

// The same of one that is written later, and more than once.
inline void check_output(const std::filesystem::path& path) {
    static_cast<void>(begin_output(path));
}

// Where a program tells what it did: not where its output goes.
inline std::FILE* told_beside(const tiffin::io::output_place& place) {
    const auto out = tiffin::io::output_place::of("/dev/stdout");
    return out && place.is_same(*out) ? stderr : stdout;
}

// Opens a file that lines are added to. It is read again, which a stream cannot be. Throws std::runtime_error.
inline std::ofstream append_to(const std::filesystem::path& path) {
    const auto place = tiffin::io::output_place::of(path);
    if (!place) throw std::runtime_error(place.failure().message());
    if (place->is_stream) throw std::runtime_error(path.string() + ": is not a regular file");
    std::ofstream to(place->target, std::ios::app);
    if (!to) throw std::runtime_error(path.string() + ": cannot be written");
    return to;
}

// Writes a text to an output that was begun, and finishes it.
inline void write_text(tiffin::io::unfinished_file to, std::string_view text) {
    if (!to.write(text.data(), text.size())) throw std::runtime_error(to.cannot_write().message());
    tiffin::status written = to.flush();
    if (written) written = to.finish();
    if (!written) throw std::runtime_error(written.failure().message());
}
inline void write_text(const std::filesystem::path& path, std::string_view text) {
    write_text(begin_output(path), text);
}
