// Cutting a text into the pieces within which a byte-level tokenizer merges: words, numbers, runs of white space.
#pragma once

#include "char_classes.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The code points of UTF-8; each byte that belongs to none becomes U+FFFD.
inline std::u32string code_points(std::string_view text) {
    std::u32string made;
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    for (std::size_t i = 0; i < text.size();) {
        const unsigned first = byte(i);
        const std::size_t length = first < 0x80   ? 1
                                   : first < 0xC0 ? 0
                                   : first < 0xE0 ? 2
                                   : first < 0xF0 ? 3
                                   : first < 0xF8 ? 4
                                                  : 0;
        bool good = length > 0 && i + length <= text.size();
        char32_t c = length < 2 ? first : first & (0x7Fu >> length);
        for (std::size_t k = 1; good && k < length; ++k) {
            good = (byte(i + k) & 0xC0) == 0x80;
            c = c << 6 | (byte(i + k) & 0x3Fu);
        }
        good = good && c <= 0x10FFFF;
        made.push_back(good ? c : U'\xFFFD');
        i += good ? length : 1;
    }
    return made;
}

inline void append_utf8(std::string& to, char32_t c) {
    const auto put = [&](char32_t bits) {
        to.push_back(static_cast<char>(static_cast<unsigned char>(bits)));
    };
    if (c < 0x80) return put(c);
    if (c < 0x800) {
        put(0xC0 | c >> 6);
    } else {
        if (c < 0x10000) {
            put(0xE0 | c >> 12);
        } else {
            put(0xF0 | c >> 18);
            put(0x80 | (c >> 12 & 0x3F));
        }
        put(0x80 | (c >> 6 & 0x3F));
    }
    put(0x80 | (c & 0x3F));
}

// A rule tells how many code points at the front of a text belong together, or 0 where it does not say.
using piece_rule = std::size_t (*)(std::u32string_view);

namespace rules {

// The code points from `first` on that `belongs` takes.
template <class Belongs>
std::size_t run(std::u32string_view at, std::size_t first, const Belongs& belongs) {
    std::size_t end = first;
    while (end < at.size() && belongs(at[end])) ++end;
    return end - first;
}
inline bool is(char32_t c, char_class kind) {
    return class_of(c) == kind;
}
inline bool is_letter(char32_t c) {
    return is(c, char_class::letter);
}
inline bool is_number(char32_t c) {
    return is(c, char_class::number);
}
inline bool is_space(char32_t c) {
    return is(c, char_class::space);
}
inline bool is_mark(char32_t c) {
    return !is_letter(c) && !is_number(c) && !is_space(c);
}
inline bool is_line_end(char32_t c) {
    return c == '\r' || c == '\n';
}

// 's|'t|'re|'ve|'m|'ll|'d
inline std::size_t contraction(std::u32string_view at, bool any_case) {
    if (at.size() < 2 || at[0] != '\'') return 0;
    const auto letter = [&](std::size_t i) {
        return any_case && i < at.size() && at[i] >= 'A' && at[i] <= 'Z' ? at[i] - U'A' + U'a'
               : i < at.size()                                           ? at[i]
                                                                         : U'\0';
    };
    const char32_t first = letter(1), second = letter(2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    return (second == 'e' && (first == 'r' || first == 'v')) || (second == 'l' && first == 'l') ? 3 : 0;
}
// \s+(?!\S)|\s+
inline std::size_t white_space(std::u32string_view at) {
    const std::size_t length = run(at, 0, is_space);
    return length > 1 && length < at.size() ? length - 1 : length;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
inline std::size_t gpt2(std::u32string_view at) {
    if (const std::size_t length = contraction(at, false); length > 0) return length;
    const std::size_t skip = at[0] == ' ' && at.size() > 1 ? 1 : 0;
    const char32_t c = at[skip];
    if (is_space(c)) return white_space(at);
    return skip + run(at, skip, is_letter(c) ? is_letter : is_number(c) ? is_number : is_mark);
}

// The same in any case |[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <std::size_t digits>
std::size_t llama3(std::u32string_view at) {
    if (const std::size_t length = contraction(at, true); length > 0) return length;
    if (is_letter(at[0])) return run(at, 0, is_letter);
    if (is_number(at[0])) return run(at.substr(0, digits), 0, is_number);
    if (!is_line_end(at[0]) && at.size() > 1 && is_letter(at[1])) return 1 + run(at, 1, is_letter);
    const std::size_t skip = at[0] == ' ' && at.size() > 1 ? 1 : 0;
    if (is_mark(at[skip])) {
        const std::size_t end = skip + run(at, skip, is_mark);
        return end + run(at, end, is_line_end);
    }
    for (std::size_t end = run(at, 0, is_space); end > 0; --end)
        if (is_line_end(at[end - 1])) return end;
    return white_space(at);
}

// \p{N}, \p{N}+, [0-9][0-9][0-9], [\p{P}$+<=>^~|]+
inline std::size_t one_number(std::u32string_view at) {
    return is_number(at[0]) ? 1 : 0;
}
inline std::size_t numbers(std::u32string_view at) {
    return run(at, 0, is_number);
}
inline std::size_t three_digits(std::u32string_view at) {
    return run(at.substr(0, 3), 0, [](char32_t c) { return c >= '0' && c <= '9'; }) == 3 ? 3 : 0;
}
inline std::size_t punctuation(std::u32string_view at) {
    return run(at, 0, [](char32_t c) {
        return is(c, char_class::punctuation) ||
               std::u32string_view(U"$+<=>^~|").find(c) != std::u32string_view::npos;
    });
}

}  // namespace rules

// The rules of a pre-tokenizer by its name in model files, one after the other: each cuts what the one before left.
inline std::optional<std::vector<piece_rule>> pre_tokenizer(std::string_view name) {
    using namespace rules;
    if (name == "smollm") return {{one_number, gpt2}};
    if (name == "gpt-2") return {{gpt2}};
    if (name == "default") return {{punctuation, gpt2, numbers, three_digits}};
    if (name == "llama-bpe") return {{llama3<3>}};
    if (name == "qwen2") return {{llama3<1>}};
    return std::nullopt;
}

// Calls use(piece) for the pieces of a text, in order.
template <class Use>
void for_pieces(std::u32string_view text, const std::vector<piece_rule>& by, const Use& use,
                std::size_t first_rule = 0) {
    if (first_rule == by.size()) return use(text);
    while (!text.empty()) {
        std::size_t before = 0, length = 0;
        while (before < text.size() && (length = by[first_rule](text.substr(before))) == 0) ++before;
        if (before > 0) for_pieces(text.substr(0, before), by, use, first_rule + 1);
        if (length > 0) for_pieces(text.substr(before, length), by, use, first_rule + 1);
        text.remove_prefix(before + length);
    }
}
