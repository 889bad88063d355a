// A string that can be a template argument: the names of tensors.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>
#include <string_view>

TIFFIN_BEGIN

template <std::size_t N>
struct fixed_string {
    char text[N]{};

    consteval fixed_string(const char (&from)[N]) {
        for (std::size_t i = 0; i < N; ++i) text[i] = from[i];
    }
    [[nodiscard]] constexpr std::string_view view() const noexcept { return {text, N - 1}; }
};

TIFFIN_END
