// A composition as text, the grammar only: names, arguments, options. Names are not resolved here.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/quoted.hpp>

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

TIFFIN_BEGIN

struct text_argument;

// "ffn(gate(silu), sum(dense, token_embedding))": a policy's name and what it is composed of. A bare name has no
// arguments. `position` is the byte of the text where it begins, for errors.
struct text_node {
    std::string name;
    std::vector<text_argument> arguments;
    std::size_t position = 0;

    friend bool operator==(const text_node& a, const text_node& b) noexcept;
};

// A positional argument (node, string, integer), or an option (a name, and a number or a node).
struct text_argument {
    std::string option;  // empty: positional
    std::variant<text_node, std::string, std::int64_t, double> value;
    std::size_t position = 0;

    // The same text, at any position.
    friend bool operator==(const text_argument& a, const text_argument& b) noexcept {
        return a.option == b.option && a.value == b.value;
    }
};
inline bool operator==(const text_node& a, const text_node& b) noexcept {
    return a.name == b.name && a.arguments == b.arguments;
}

// Limits of a text: far above what a layer needs, and low enough for any machine.
struct text_limits {
    static constexpr std::size_t bytes = 64 * 1024, depth = 32, nodes = 10'000;
};

namespace detail {

class text_parser {
public:
    explicit text_parser(std::string_view text) noexcept : text_(text) {}

    result<text_node> parse() {
        if (text_.size() > text_limits::bytes)
            return failure(errc::option, "composition", "has ", text_.size(), " bytes, more than ",
                           text_limits::bytes);
        text_node whole;
        skip_spaces();
        if (status s = node(whole, 1); !s) return s.failure();
        if (at_ < text_.size()) return expected("the end").failure();
        return whole;
    }

private:
    static constexpr bool is_letter(char c) noexcept {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    }
    static constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
    static constexpr bool is_space(char c) noexcept {
        return c == ' ' || c == '\t' || c == '\n' || c == '\r';
    }

    [[nodiscard]] char now() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }
    void skip_spaces() noexcept {
        while (is_space(now())) ++at_;
    }
    bool take(char c) noexcept {
        if (now() != c) return false;
        ++at_;
        skip_spaces();
        return true;
    }
    [[nodiscard]] status expected(std::string_view what) const {
        if (at_ >= text_.size())
            return failure(errc::option, "composition", "ends at byte ", at_, "; expected ", what);
        return failure(errc::option, "composition", in_quotes(text_.substr(at_, 24)), " at byte ", at_,
                       "; expected ", what);
    }

    status name(std::string& to, std::string_view what) {
        if (!is_letter(now())) return expected(what);
        const std::size_t begin = at_;
        while (is_letter(now()) || is_digit(now())) ++at_;
        to = text_.substr(begin, at_ - begin);
        skip_spaces();
        return {};
    }
    status node(text_node& to, std::size_t depth) {
        to.position = at_;
        if (status s = name(to.name, "the name of a policy"); !s) return s;
        return arguments(to, depth);
    }
    // The arguments after a node's name.
    status arguments(text_node& to, std::size_t depth) {
        if (depth > text_limits::depth)
            return failure(errc::option, "composition", in_quotes(to.name), " at byte ", to.position,
                           " lies deeper than ", text_limits::depth, " policies inside one another");
        if (++nodes_ > text_limits::nodes)
            return failure(errc::option, "composition", "names more than ", text_limits::nodes, " policies");
        if (!take('(') || take(')')) return {};
        do {
            if (status s = argument(to.arguments.emplace_back(), depth); !s) return s;
        } while (take(','));
        return take(')') ? status() : expected("',' or ')'");
    }
    status argument(text_argument& to, std::size_t depth) {
        to.position = at_;
        if (now() == '"' || now() == '\'') return string(to);
        if (begins_number()) return number(to);
        if (!is_letter(now())) return expected("a policy, a string, an integer or an option");
        text_node named{{}, {}, at_};
        if (status s = name(named.name, "a name"); !s) return s;
        if (take('=')) {
            to.option = std::move(named.name);
            if (begins_number()) return number(to);
            if (!is_letter(now())) return expected("a number or a name");
            if (status s = node(named, depth + 1); !s) return s;
        } else if (status s = arguments(named, depth + 1); !s) {
            return s;
        }
        to.value = std::move(named);
        return {};
    }
    [[nodiscard]] bool begins_number() const noexcept {
        return is_digit(now()) || now() == '-' || now() == '+' || now() == '.';
    }
    // In either quote, printable ASCII, without escapes.
    status string(text_argument& to) {
        const char quote = now();
        const std::size_t begin = at_ + 1;
        std::size_t end = begin;
        while (end < text_.size() && text_[end] >= 0x20 && text_[end] < 0x7F && text_[end] != quote) ++end;
        if (end == text_.size() || text_[end] != quote) {
            at_ = end;
            return expected("the end of a string, in the quote that it began with");
        }
        to.value = std::string(text_.substr(begin, end - begin));
        at_ = end + 1;
        skip_spaces();
        return {};
    }
    status number(text_argument& to) {
        const char* const begin = text_.data() + at_;
        const char* const end = text_.data() + text_.size();
        std::int64_t whole = 0;
        double real = 0;
        const auto as_whole = std::from_chars(begin, end, whole);
        const auto as_real = std::from_chars(begin, end, real);
        const bool is_whole = as_whole.ec == std::errc() && as_whole.ptr == as_real.ptr;
        if (as_real.ec != std::errc() || !std::isfinite(real)) return expected("a finite number");
        if (!is_whole && to.option.empty()) return expected("an integer: other numbers belong to options");
        if (is_whole)
            to.value = whole;
        else
            to.value = real;
        at_ += static_cast<std::size_t>(as_real.ptr - begin);
        if (is_letter(now()) || is_digit(now()) || now() == '.') return expected("the end of a number");
        skip_spaces();
        return {};
    }

    std::string_view text_;
    std::size_t at_ = 0;
    std::size_t nodes_ = 0;
};

inline void print_to(std::string& to, const text_node& node);
inline void print_to(std::string& to, const std::string& text) {
    const char quote = text.find('"') == std::string::npos ? '"' : '\'';
    to.append(1, quote).append(text).append(1, quote);
}
inline void print_to(std::string& to, std::int64_t number) {
    to.append(std::to_string(number));
}
// The shortest text that reads back as the same number; never as an integer.
inline void print_to(std::string& to, double number) {
    char text[32];
    const auto [end, bad] = std::to_chars(text, text + sizeof text, number);
    const std::string_view digits(text, static_cast<std::size_t>(end - text));
    to.append(digits);
    if (digits.find_first_of(".e") == std::string_view::npos) to.append(".0");
}
inline void print_to(std::string& to, const text_argument& argument) {
    if (!argument.option.empty()) to.append(argument.option).append("=");
    std::visit([&](const auto& value) { print_to(to, value); }, argument.value);
}
inline void print_to(std::string& to, const text_node& node) {
    to.append(node.name);
    std::string_view before = "(";
    for (const text_argument& a : node.arguments) {
        to.append(before);
        before = ", ";
        print_to(to, a);
    }
    if (!node.arguments.empty()) to.append(")");
}

}  // namespace detail

// Reads a text by the grammar
//     node := name [ "(" [ arg { "," arg } ] ")" ]
//     arg  := node | string | integer | name "=" (number | node)
// with ASCII strings in either quote, without escapes, and spaces between any two of these.
// Errors: errc::option with the byte position, what was found and what was expected; for more than 64 KiB, 32 policies
//   inside one another, or 10,000 policies.
// Cost: linear in the text.
inline result<text_node> parse_text(std::string_view text) {
    return detail::text_parser(text).parse();
}

// The text of a node: parse_text(print_text(n)) is n. Precondition: strings are ASCII and do not contain both kinds of
// quote, numbers are finite.
inline std::string print_text(const text_node& node) {
    std::string text;
    detail::print_to(text, node);
    return text;
}

TIFFIN_END
