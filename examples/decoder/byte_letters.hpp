// What tokenizers call single bytes, and how SentencePiece shows spaces.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

// SentencePiece's token of a byte: <0x0A>.
inline std::string byte_name(int byte) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    return {'<',
            '0',
            'x',
            digits[static_cast<std::size_t>(byte / 16)],
            digits[static_cast<std::size_t>(byte % 16)],
            '>'};
}

// GPT-2's letters for bytes: printable ones stand for themselves, the others are counted from U+0100 on.
inline std::array<char32_t, 256> byte_letters() {
    std::array<char32_t, 256> letters{};
    char32_t next = 0x100;
    for (std::size_t byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
        letters[byte] = printable ? static_cast<char32_t>(byte) : next++;
    }
    return letters;
}

// U+2581 in the place of each space, and back.
inline constexpr std::string_view shown_space = "\xE2\x96\x81";
inline std::string with_shown_spaces(std::string_view text) {
    std::string made;
    for (const char c : text) c == ' ' ? made.append(shown_space) : made.append(1, c);
    return made;
}
inline std::string with_spaces(std::string_view text) {
    std::string made;
    for (std::size_t at = 0; at < text.size();) {
        const bool space = text.substr(at).starts_with(shown_space);
        made.push_back(space ? ' ' : text[at]);
        at += space ? shown_space.size() : 1;
    }
    return made;
}
