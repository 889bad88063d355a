// A string that can be a template argument: the names of tensors.
#pragma once

#include <tiffin/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

TIFFIN_BEGIN

// Up to 63 characters other than 0, eight per integer. Not an array: nvcc prints the types of kernels into host code,
// and prints an array template argument in a form that no host compiler parses.
struct fixed_string {
    std::uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;

    template <std::size_t N>
    consteval fixed_string(const char (&from)[N]) {
        static_assert(N <= 64, "tiffin: the name of a tensor or a scope has at most 63 characters");
        for (std::size_t i = 0; i + 1 < N; ++i)
            word(i / 8) |= std::uint64_t{static_cast<unsigned char>(from[i])} << i % 8 * 8;
    }
    constexpr fixed_string(std::uint64_t a_, std::uint64_t b_, std::uint64_t c_, std::uint64_t d_,
                           std::uint64_t e_, std::uint64_t f_, std::uint64_t g_, std::uint64_t h_) noexcept
        : a(a_), b(b_), c(c_), d(d_), e(e_), f(f_), g(g_), h(h_) {}

    [[nodiscard]] constexpr char at(std::size_t i) const noexcept {
        const std::array<std::uint64_t, 8> words{{a, b, c, d, e, f, g, h}};
        return static_cast<char>(words[i / 8] >> i % 8 * 8 & 0xFFu);
    }
    [[nodiscard]] constexpr std::size_t size() const noexcept {
        std::size_t n = 0;
        while (n < 63 && at(n) != '\0') ++n;
        return n;
    }

private:
    constexpr std::uint64_t& word(std::size_t i) noexcept {
        return i == 0 ? a : i == 1 ? b : i == 2 ? c : i == 3 ? d : i == 4 ? e : i == 5 ? f : i == 6 ? g : h;
    }
};

namespace detail {

template <fixed_string Text>
inline constexpr auto characters_of = [] {
    std::array<char, Text.size() + 1> all{};
    for (std::size_t i = 0; i != Text.size(); ++i) all[i] = Text.at(i);
    return all;
}();

}  // namespace detail

template <fixed_string Text>
inline constexpr std::string_view text_of{detail::characters_of<Text>.data(), Text.size()};

TIFFIN_END
