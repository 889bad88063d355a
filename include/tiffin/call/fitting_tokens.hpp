// How much of a call an engine computes at a time.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace detail {

// The most of so many tokens whose bytes(tokens) are at most `room`; 0 where not even one fits.
template <class Bytes>
std::size_t fitting_tokens(const Bytes& bytes, std::size_t tokens, std::size_t room) noexcept {
    if (bytes(tokens) <= room) return tokens;
    std::size_t fits = 0;
    while (tokens - fits > 1) {
        const std::size_t middle = fits + (tokens - fits) / 2;
        (bytes(middle) <= room ? fits : tokens) = middle;
    }
    return fits;
}

// More tasks at a time than any machine runs; the workspaces of so many can be counted.
inline constexpr std::size_t most_workers = std::size_t{1} << 16;

}  // namespace detail

TIFFIN_END
