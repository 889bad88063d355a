// Numbers in the texts of command lines: decimal, with nothing beside them, and inside of a range.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

// From `least` to `most`, both inside and finite: NaN and the infinities are in no range.
template <class T>
struct number_range {
    T least, most;

    // Whole numbers have digits alone: no 0x10, no 1e3, and no 010, which others read as eight.
    [[nodiscard]] std::optional<T> read(std::string_view text) const {
        T value{};
        const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (wrong != std::errc{} || end != text.data() + text.size()) return std::nullopt;
        if (std::integral<T> && text.size() > 1 &&
            text.find_first_of("123456789") != text.find_first_not_of('-'))
            return std::nullopt;
        return value >= least && value <= most ? std::optional(value) : std::nullopt;
    }
    // "from 1 to 16777216"
    [[nodiscard]] std::string text() const {
        std::ostringstream made;
        made << "from " << least << " to " << most;
        return made.str();
    }
    // What is wrong with a text that is not read.
    [[nodiscard]] std::string wrong(std::string_view given) const {
        return "'" + std::string(given) + "' is no " + (std::integral<T> ? "whole " : "") + "number " +
               text();
    }
};

// A shape DxF, such as 512x2048.
inline std::optional<std::pair<std::size_t, std::size_t>> read_shape(std::string_view text,
                                                                     const number_range<std::size_t>& d_model,
                                                                     const number_range<std::size_t>& d_ff) {
    const std::size_t between = text.find('x');
    if (between == text.npos) return std::nullopt;
    const auto d = d_model.read(text.substr(0, between)), f = d_ff.read(text.substr(between + 1));
    return d && f ? std::optional(std::pair(*d, *f)) : std::nullopt;
}

// Ranges that several programs have.
inline constexpr number_range<std::size_t> thread_counts{1, 1024};
inline constexpr number_range<std::size_t> layer_numbers{0, 65535};
inline constexpr number_range<std::size_t> model_widths{1, 65536}, ffn_widths{1, 262144};
inline constexpr number_range<std::uint64_t> seed_numbers{0, std::numeric_limits<std::uint64_t>::max()};
inline constexpr number_range<double> temperatures{0, 100};
