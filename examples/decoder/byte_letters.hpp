// What tokenizers call single bytes.
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
