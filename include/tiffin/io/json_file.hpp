// Reads JSON files as Python writes them.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/json_text.hpp>
#include <tiffin/quoted.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

// A pass over a text before it is parsed: finds the first syntax error, and the first key that an object has twice.
class json_check final : public nlohmann::json_sax<nlohmann::json> {
public:
    std::size_t wrong_at = 0;
    std::string last;  // the token at wrong_at
    std::string twice;

    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(std::int64_t) override { return true; }
    bool number_unsigned(std::uint64_t) override { return true; }
    bool number_float(double, const std::string&) override { return true; }
    bool string(std::string&) override { return true; }
    bool binary(nlohmann::json::binary_t&) override { return true; }
    bool start_array(std::size_t) override { return true; }
    bool end_array() override { return true; }
    bool start_object(std::size_t) override {
        keys_.emplace_back();
        return true;
    }
    bool key(std::string& name) override {
        if (!keys_.back().insert(name).second && twice.empty()) twice = name;
        return true;
    }
    bool end_object() override {
        keys_.pop_back();
        return true;
    }
    bool parse_error(std::size_t position, const std::string& token,
                     const nlohmann::json::exception&) override {
        wrong_at = position;
        last = token;
        return false;
    }

private:
    std::vector<std::set<std::string>> keys_;
};

// The text with its non-finite numbers as strings: NaN, Infinity and -Infinity, which Python writes and JSON does not
// have, and numbers beyond a double. Where such a key is read as a number, the failure then shows its value.
inline std::string with_finite_numbers(std::string_view text) {
    std::string made;
    made.reserve(text.size());
    const auto take = [&](std::size_t count, bool as_text) {
        if (as_text) made += '"';
        made += text.substr(0, count);
        if (as_text) made += '"';
        text.remove_prefix(count);
    };
    while (!text.empty()) {
        if (text.front() == '"') {
            std::size_t end = 1;
            while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2u : 1u;
            take(std::min(end + 1, text.size()), false);
            continue;
        }
        const std::size_t end = std::min(text.find_first_of(" \t\r\n\",:{}[]"), text.size());
        const std::string_view word = text.substr(0, end);
        double number = 0;
        const auto [last, code] = std::from_chars(word.data(), word.data() + word.size(), number);
        const bool beyond = code == std::errc::result_out_of_range && last == word.data() + word.size() &&
                            word.find("e-") == word.npos && word.find("E-") == word.npos;
        take(std::max<std::size_t>(end, 1),
             beyond || word == "NaN" || word == "Infinity" || word == "-Infinity");
    }
    return made;
}

// Whether the path exists, also as a dangling symbolic link: opening that fails with a message of its own.
inline bool is_there(const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

struct json_object {
    nlohmann::json value;
    std::string twice;  // a key that it, or an object inside it, has twice; else empty
};

// Reads a file of one JSON object, which a byte-order mark may precede. Comments are refused.
// Errors: errc::file, with the file's name.
inline result<json_object> read_json(const std::filesystem::path& path, const std::string& label) {
    const auto refuse = [&](const auto&... what) {
        return failure(errc::file, label, path.filename().string(), what...);
    };
    std::ifstream file(path, std::ios::binary);
    if (!file) return refuse(" cannot be opened");
    const std::string given{std::istreambuf_iterator<char>(file), {}};
    // The parser takes a zero byte for the end of its input and would not read on.
    if (given.find('\0') != given.npos) return refuse(" is no JSON: it has a zero byte");
    const std::string text = with_finite_numbers(given);
    json_check check;
    if (!parse_json(text, check)) {
        const std::size_t before = std::min(check.wrong_at, text.size());
        return refuse(" cannot be read as JSON in its line ",
                      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(before), '\n'),
                      check.wrong_at >= text.size() ? ", where it ends, near " : ", near ",
                      tiffin::detail::in_quotes(check.last),
                      check.last.ends_with('/') || check.last.ends_with('#') ? "; JSON has no comments" : "");
    }
    json_object made{json_tree(text), check.twice};
    if (!made.value.is_object()) return refuse(" is no JSON object");
    return made;
}

}  // namespace io::detail
TIFFIN_END
