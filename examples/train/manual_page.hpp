// Manual pages as plain text: roff without its macros and escapes.
#pragma once

#include "plain_text.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace plain_text {

inline void append_special(std::string& to, std::string_view name) {
    static constexpr character_name names[] = {
        {"aq", "'"},  {"Aq", "'"},   {"oq", "'"},    {"cq", "'"},   {"dq", "\""},  {"lq", "\""},
        {"rq", "\""}, {"L\"", "\""}, {"R\"", "\""},  {"em", "--"},  {"en", "-"},   {"--", "--"},
        {"hy", "-"},  {"mi", "-"},   {"bu", "*"},    {"co", "(C)"}, {"rg", "(R)"}, {"tm", "(TM)"},
        {"ha", "^"},  {"ti", "~"},   {"rs", "\\"},   {"ga", "`"},   {"at", "@"},   {"sh", "#"},
        {"Do", "$"},  {"ba", "|"},   {"or", "|"},    {"lB", "["},   {"rB", "]"},   {"lC", "{"},
        {"rC", "}"},  {"la", "<"},   {"ra", ">"},    {"<=", "<="},  {">=", ">="},  {"!=", "!="},
        {"->", "->"}, {"<-", "<-"},  {"mu", "x"},    {"+-", "+-"},  {"pl", "+"},   {"eq", "="},
        {"sl", "/"},  {"C+", "C++"}, {"Tm", "(TM)"}, {"R", "(R)"}};
    if (const character_name* const known = find(name, names); known != nullptr)
        to += known->text;
    else if (name.starts_with('u'))
        append_character(to, name.substr(1), 16);
}

// Takes the name behind an escape from a line: (xx, [any] or one character.
inline std::string_view take_name(std::string_view& line) {
    const std::size_t close = line.starts_with('[') ? line.find(']') : line.npos;
    const bool is_two = line.starts_with('('), is_any = close != line.npos;
    const std::string_view all = line.substr(0, is_two ? 3 : is_any ? close + 1 : 1);
    line.remove_prefix(all.size());
    return is_two ? all.substr(1) : is_any ? all.substr(1, close - 1) : all;
}

// A line of text. Of its escapes characters are kept; fonts, sizes, motions and registers are left out.
inline void append_line(std::string& to, std::string_view line) {
    while (!line.empty()) {
        const char c = line[0];
        line.remove_prefix(1);
        if (c != '\\') {
            to.push_back(c);
            continue;
        }
        if (line.empty()) return;
        if (is_in(line[0], "([")) {
            append_special(to, take_name(line));
            continue;
        }
        const char escape = line[0];
        line.remove_prefix(1);
        if (is_in(escape, "\"#")) return;  // a comment
        if (is_in(escape, "sn") && !line.empty() && is_in(line[0], "+-")) line.remove_prefix(1);
        if (escape == '*') {
            append_special(to, take_name(line));
        } else if (is_in(escape, "fFgkmMnsV")) {
            take_name(line);
        } else if (is_in(escape, "bDhHlLNoSvwxXZ")) {  // \h'3n'
            const std::size_t end = line.empty() ? line.npos : line.find(line[0], 1);
            if (end != line.npos) line.remove_prefix(end + 1);
        } else if (is_in(escape, " ~0t")) {
            to.push_back(' ');
        } else if (is_in(escape, "-'`._")) {
            to.push_back(escape);
        } else if (is_in(escape, "e\\")) {
            to.push_back('\\');
        }
    }
}

// The arguments of a macro: words, or anything in double quotes, where "" is a quote.
inline std::vector<std::string> arguments_of(std::string_view line) {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < line.size();) {
        if (is_blank(line[i])) {
            ++i;
            continue;
        }
        if (line.substr(i).starts_with("\\\"")) break;
        std::string raw;
        const bool quoted = line[i] == '"';
        for (i += quoted ? 1 : 0; i < line.size() && (quoted || !is_blank(line[i])); ++i) {
            if (quoted && line[i] == '"' && (++i == line.size() || line[i] != '"')) break;
            raw.push_back(line[i]);
            if (line[i] == '\\' && i + 1 < line.size()) raw.push_back(line[++i]);
        }
        append_line(all.emplace_back(), raw);
    }
    return all;
}

// A line as it is meant: one that ends with a backslash goes on in the next.
inline std::string take_line(std::string_view& roff) {
    std::string whole;
    for (bool goes_on = true; goes_on;) {
        const std::string_view line = roff.substr(0, roff.find('\n'));
        roff.remove_prefix(std::min(line.size() + 1, roff.size()));
        whole += line;
        goes_on = whole.ends_with('\\') && !whole.ends_with("\\\\") && !roff.empty();
        if (goes_on) whole.pop_back();
    }
    return whole;
}

// Of macros the texts of headings, fonts and list tags are kept. Tables, equations and definitions are left out.
// A page in BSD's macros (mdoc), whose sentences are made of macros, would be full of holes: it has no text.
inline std::string from_roff(std::string_view roff) {
    std::string text;
    if (roff.starts_with(".Dd") || roff.find("\n.Dd") != roff.npos) return text;
    std::string_view until;  // the end of what is left out
    bool fills = true;       // lines are joined
    enum { a_break, a_text, a_font } last = a_break;
    while (!roff.empty()) {
        const std::string whole = take_line(roff);
        std::string_view line = whole;
        if (!until.empty()) {
            if (line.starts_with(until)) until = {};
            continue;
        }
        if (line.empty() || !is_in(line[0], ".'")) {
            if (last == a_font && fills && !line.empty() && line[0] != ' ') text.back() = ' ';
            append_line(text, line);
            while (text.ends_with(' ')) text.pop_back();
            text.push_back('\n');
            last = line.empty() ? a_break : a_text;
            continue;
        }
        line.remove_prefix(std::min(line.size(), line.find_first_not_of(" \t", 1)));
        const std::string_view name = line.substr(0, line.find_first_of(" \t"));
        line.remove_prefix(name.size());
        if (name.starts_with("\\\"")) continue;
        const auto is = [&](std::string_view names) { return is_among(name, names); };
        const bool is_heading = is("SH SS"), joins = is("BR BI IB IR RB RI"),
                   is_font = joins || is("B I SM SB");
        if (is("de de1 am ig")) until = "..";
        if (is("TS")) until = ".TE";
        if (is("EQ")) until = ".EN";
        if (is_heading || is("fi EE")) fills = true;
        if (is("nf EX")) fills = false;
        if (is_heading || is("PP LP P TP HP IP")) text += "\n\n";
        const std::size_t before = text.size();
        if (is_heading || is_font || name == "IP")
            for (const std::string& argument : arguments_of(line)) {
                if (text.size() > before && name == "IP") break;  // its indent
                text.append(text.size() > before && !joins ? " " : "").append(argument);
            }
        // Fonts change within a sentence, whose line goes on.
        if (is_font && fills && last != a_break && text.size() > before) text[before - 1] = ' ';
        if (text.size() > before) text.push_back('\n');
        if (!is_font || text.size() > before) last = is_font ? a_font : a_break;
    }
    return text;
}

}  // namespace plain_text
