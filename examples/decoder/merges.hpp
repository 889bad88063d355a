// Joining neighbours, best pair first: what byte-level BPE and SentencePiece have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <queue>
#include <string_view>
#include <tuple>
#include <vector>

// The bytes of a UTF-8 character by its first.
inline std::size_t character_length(char first) {
    const unsigned high = static_cast<unsigned char>(first) >> 4;
    return high < 12 ? 1 : high < 14 ? 2 : high - 11;
}

// Calls use(symbol) for the symbols of a text: its characters, neighbours of the lowest rank joined until none
// have a rank, of equal ranks the leftmost first.
// rank(both, left): an optional number, of the text of two neighbours and the length of the first.
template <class Rank, class Use>
void for_merged(std::string_view text, const Rank& rank, const Use& use) {
    struct symbol {
        std::size_t begin, length, before, after;
    };
    constexpr std::size_t none = static_cast<std::size_t>(-1);
    std::vector<symbol> symbols;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = std::min(character_length(text[at]), text.size() - at);
        symbols.push_back({at, length, symbols.size() - 1, symbols.size() + 1});
        at += length;
    }
    if (symbols.empty()) return;
    symbols.back().after = none;

    // (rank, left, right, length of both); a pair is out of date where the length is another.
    using pair = std::tuple<double, std::size_t, std::size_t, std::size_t>;
    std::priority_queue<pair, std::vector<pair>, std::greater<>> pairs;
    const auto offer = [&](std::size_t left, std::size_t right) {
        if (left == none || right == none) return;
        const symbol &l = symbols[left], &r = symbols[right];
        const std::size_t both = l.length + r.length;
        if (const std::optional<double> found = rank(text.substr(l.begin, both), l.length))
            pairs.emplace(*found, left, right, both);
    };
    for (std::size_t i = 1; i < symbols.size(); ++i) offer(i - 1, i);
    while (!pairs.empty()) {
        const auto [found, left, right, both] = pairs.top();
        pairs.pop();
        symbol &l = symbols[left], &r = symbols[right];
        if (l.length == 0 || r.length == 0 || l.length + r.length != both) continue;
        l.length = both;
        r.length = 0;
        l.after = r.after;
        if (r.after != none) symbols[r.after].before = left;
        offer(l.before, left);
        offer(left, l.after);
    }
    for (std::size_t i = 0; i != none; i = symbols[i].after)
        use(text.substr(symbols[i].begin, symbols[i].length));
}
