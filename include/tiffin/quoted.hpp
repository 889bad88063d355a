// Text from outside, such as names in files, made printable for messages.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>
#include <string>
#include <string_view>

TIFFIN_BEGIN
namespace detail {

// The most characters of a message for a name within a sentence, for a sentence, and for a path.
inline constexpr std::size_t name_limit = 96, sentence_limit = 2048, path_limit = 4096;

// `text` as at most `limit` characters of printable ASCII; every other byte becomes \xNN. Longer text is cut and its
// length appended. Short printable text is unchanged: messages may quote messages.
// Precondition: `limit` is 32 or more, so that the length has room.
inline std::string printable(std::string_view text, std::size_t limit = name_limit) {
    constexpr std::string_view digits = "0123456789abcdef";
    const std::string cut = "... (" + std::to_string(text.size()) + " bytes)";
    std::string out;
    std::size_t kept = 0;  // characters of `out` to keep if it is cut
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7F) {
            out += c;
        } else {
            out += "\\x";
            out += digits[byte >> 4];
            out += digits[byte & 15u];
        }
        if (out.size() + cut.size() <= limit) kept = out.size();
        if (out.size() <= limit) continue;
        out.resize(kept);
        return out += cut;
    }
    return out;
}

// The same in quotes, for a name or a value inside a sentence.
inline std::string in_quotes(std::string_view name) {
    std::string out = "'";  // appended to: g++ 12 warns falsely of the temporaries of a + b
    out += printable(name);
    out += '\'';
    return out;
}

}  // namespace detail
TIFFIN_END
