// How many tokens of a call an engine computes at a time.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace detail {

// The largest count, at most `tokens`, with bytes(count) <= room; 0 if not even one token fits.
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

// More concurrent tasks than any machine runs; the bytes of this many workspaces do not overflow.
inline constexpr std::size_t most_workers = std::size_t{1} << 16;

}  // namespace detail

TIFFIN_END
