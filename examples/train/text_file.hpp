// A file as plain text, if it is one.
#pragma once

#include "../support/vocabulary.hpp"
#include "manual_page.hpp"
#include "plain_text.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ios>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#ifdef TIFFIN_EXAMPLE_ZLIB
#    include <zlib.h>
#endif

namespace text_file {

// Nothing where the file cannot be read, or has `limit` bytes or more. What is packed is unpacked; without zlib it is
// read as it is, which is no text.
inline std::optional<std::string> contents_of(const std::filesystem::path& path, std::size_t limit) {
    std::string bytes;
    std::string block(std::size_t{1} << 16, '\0');
#ifdef TIFFIN_EXAMPLE_ZLIB
    if (path.extension() == ".gz") {
        const gzFile file = gzopen(path.c_str(), "rb");
        if (file == nullptr) return std::nullopt;
        int count = 0;
        while (bytes.size() < limit &&
               (count = gzread(file, block.data(), static_cast<unsigned>(block.size()))) > 0)
            bytes.append(block, 0, static_cast<std::size_t>(count));
        // Closing tells of a file that was cut off.
        const bool is_whole = gzclose(file) == Z_OK && count >= 0 && bytes.size() < limit;
        return is_whole ? std::optional(std::move(bytes)) : std::nullopt;
    }
#endif
    std::ifstream file(path, std::ios::binary);
    if (!file) return std::nullopt;
    while (bytes.size() < limit && file) {
        file.read(block.data(), static_cast<std::streamsize>(block.size()));
        bytes.append(block, 0, static_cast<std::size_t>(file.gcount()));
    }
    return file.bad() || bytes.size() >= limit ? std::nullopt : std::optional(std::move(bytes));
}

// No zero byte, and UTF-8 at the front, whose last character may be cut.
inline bool is_text(std::string_view bytes) {
    constexpr std::size_t looked_at = 4096, longest_character = 4;
    const std::optional<std::size_t> bad = invalid_utf8_at(bytes.substr(0, looked_at));
    const bool is_cut = bad && bytes.size() > looked_at && *bad + longest_character > looked_at;
    return bytes.find('\0') == bytes.npos && (!bad || is_cut);
}

// Without the markup that the name tells of, with or without .gz: .html and the like; or a section of the manual
// (.1, .3pm), or a folder man/.
inline std::string without_markup(const std::filesystem::path& path, const std::string& bytes) {
    const std::filesystem::path name = path.extension() == ".gz" ? path.stem() : path.filename();
    const std::string kind = name.extension().string();
    if (kind == ".html" || kind == ".htm" || kind == ".xhtml") return plain_text::from_html(bytes);
    const bool is_section =
        kind.size() > 1 && kind[1] >= '1' && kind[1] <= '9' &&
        std::all_of(kind.begin() + 2, kind.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    const bool is_in_manual = std::find(path.begin(), path.end(), "man") != path.end();
    // What has no title or heading is not a manual page, whatever its name.
    const bool has_macros = bytes.starts_with(".") || bytes.starts_with("'\\\"") ||
                            bytes.find("\n.TH") != bytes.npos || bytes.find("\n.SH") != bytes.npos ||
                            bytes.find("\n.Dd") != bytes.npos;
    return (is_section || is_in_manual) && has_macros ? plain_text::from_roff(bytes) : bytes;
}

// Lines without white space at their ends, at most one blank line in a row, and none around the text. A line that
// is a dot alone is blank: so paragraphs are kept apart in the licences of Debian's packages.
inline std::string tidy(std::string_view text) {
    std::string made;
    std::size_t blank = 0;
    while (!text.empty()) {
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        while (!line.empty() && plain_text::is_blank(line.back())) line.remove_suffix(1);
        const std::size_t first = line.find_first_not_of(" \t");
        if (line.empty() || line.substr(first) == ".") {
            ++blank;
            continue;
        }
        if (!made.empty()) made.append(blank > 0 ? "\n\n" : "\n");
        made.append(line);
        blank = 0;
    }
    return made;
}

// Whether a name tells of drawings or of data, which may be in letters too.
inline bool is_data(const std::filesystem::path& path) {
    const std::filesystem::path name = path.extension() == ".gz" ? path.stem() : path.filename();
    return plain_text::is_among(name.extension().string(), ".eps .json .ps .svg");
}

// Nothing where the file cannot be read, has `limit` bytes or more, unpacked, or is no text.
inline std::optional<std::string> read(const std::filesystem::path& path, std::size_t limit) {
    const std::optional<std::string> bytes = contents_of(path, limit);
    if (!bytes || !is_text(*bytes)) return std::nullopt;
    return tidy(without_markup(path, *bytes));
}

}  // namespace text_file
