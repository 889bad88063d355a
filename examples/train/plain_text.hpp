// HTML as plain text: what a language model is to learn, without the markup.
#pragma once

#include "../decoder/pre_tokenizer.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

namespace plain_text {

// Names of characters, in HTML between '&' and ';', in roff behind an escape. What ASCII can say is ASCII.
struct character_name {
    std::string_view name, text;
};
template <std::size_t n>
const character_name* find(std::string_view name, const character_name (&names)[n]) {
    const auto* const at =
        std::find_if(names, names + n, [&](const character_name& c) { return c.name == name; });
    return at == names + n ? nullptr : at;
}

inline bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}
inline char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
inline bool is_in(char c, std::string_view some) {
    return some.find(c) != some.npos;
}
// Whether a name is one of some, which spaces separate.
inline bool is_among(std::string_view name, std::string_view names) {
    while (!names.empty()) {
        const std::string_view one = names.substr(0, names.find(' '));
        if (one == name) return true;
        names.remove_prefix(std::min(names.size(), one.size() + 1));
    }
    return false;
}
// Appends the character of a number, given in digits to a base. False where there is none.
inline bool append_character(std::string& to, std::string_view digits, int base) {
    std::uint32_t code = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, code, base);
    if (error != std::errc() || stop != end) return false;
    if (code == 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    append_utf8(to, code);
    return true;
}

// What stands between '&' and ';'. False where that is no name of a character.
inline bool append_entity(std::string& to, std::string_view name) {
    static constexpr character_name names[] = {
        {"amp", "&"},    {"lt", "<"},       {"gt", ">"},     {"quot", "\""},    {"apos", "'"},
        {"nbsp", " "},   {"copy", "(C)"},   {"reg", "(R)"},  {"trade", "(TM)"}, {"mdash", "--"},
        {"ndash", "-"},  {"hellip", "..."}, {"lsquo", "'"},  {"rsquo", "'"},    {"ldquo", "\""},
        {"rdquo", "\""}, {"bull", "*"},     {"middot", "*"}, {"times", "x"},    {"minus", "-"},
        {"le", "<="},    {"ge", ">="},      {"ne", "!="},    {"larr", "<-"},    {"rarr", "->"}};
    if (name.starts_with("#x") || name.starts_with("#X")) return append_character(to, name.substr(2), 16);
    if (name.starts_with('#')) return append_character(to, name.substr(1), 10);
    const character_name* const known = find(name, names);
    if (known != nullptr) to += known->text;
    return known != nullptr;
}

// What a tag is in plain text: nothing if it stands in a line, a space between cells, a new line or a paragraph.
inline std::string_view break_of(std::string_view tag) {
    constexpr std::string_view in_lines =
        "a abbr acronym b big cite code del dfn em font i img ins kbd mark nobr q s samp small span strong "
        "sub "
        "sup tt u var wbr";
    if (tag == "td" || tag == "th") return " ";
    if (tag.empty() || is_among(tag, in_lines)) return "";
    return is_among(tag, "br li tr dt dd option") ? "\n" : "\n\n";
}

// The length of the tag at the front: to a '>' outside of quotes, or to the first where these do not end. 0: none.
inline std::size_t tag_length(std::string_view html) {
    constexpr std::size_t longest = 4096;
    html = html.substr(0, longest);
    if (html.size() < 3 || !(is_in(html[1], "/!?") || (lower(html[1]) >= 'a' && lower(html[1]) <= 'z')))
        return 0;
    bool quoted = false;
    for (std::size_t i = 1; i < html.size(); ++i) {
        if (html[i] == '"') quoted = !quoted;
        if (html[i] == '>' && !quoted) return i + 1;
    }
    return html.find('>') + 1;
}

// Without tags, comments, scripts and styles. White space is one space or new line, save in <pre>.
inline std::string from_html(std::string_view html) {
    std::string text, name;
    bool keeps_space = false;
    while (!html.empty()) {
        const char c = html[0];
        std::size_t length = 1;
        if (html.starts_with("<!--")) {
            const std::size_t end = html.find("-->", 4);
            length = end == html.npos ? html.size() : end + 3;
        } else if (const std::size_t tag = c == '<' ? tag_length(html) : 0; tag > 0) {
            const bool closes = html[1] == '/';
            name.clear();
            for (std::size_t i = closes ? 2 : 1; !is_blank(html[i]) && !is_in(html[i], "/>"); ++i)
                name.push_back(lower(html[i]));
            const std::string_view gap = is_in(html[1], "!?") ? "" : break_of(name);
            if (gap != " " || (!text.empty() && !is_blank(text.back()))) text += gap;
            if (name == "pre") keeps_space = !closes;
            length = tag;
            if (!closes && (name == "script" || name == "style")) {
                name.insert(0, "</");
                const auto* const end = std::search(html.begin() + tag, html.end(), name.begin(), name.end(),
                                                    [](char a, char b) { return lower(a) == b; });
                length = static_cast<std::size_t>(end - html.begin());
            }
        } else if (const std::size_t end = c == '&' ? html.substr(0, 12).find(';') : html.npos;
                   end != html.npos && append_entity(text, html.substr(1, end - 1))) {
            length = end + 1;
        } else if (keeps_space || !is_blank(c)) {
            text.push_back(c);
        } else if (text.empty() || !is_blank(text.back())) {
            text.push_back(c == '\n' ? '\n' : ' ');
        }
        html.remove_prefix(length);
    }
    return text;
}

}  // namespace plain_text
