// Token ids from real text: frequent words have an id of their own, the rest is spelled in bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// The offset of the first byte that is not UTF-8 (overlong forms and surrogates included), or nothing.
inline std::optional<std::size_t> invalid_utf8_at(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    for (std::size_t i = 0; i < text.size();) {
        const unsigned first = byte(i);
        const std::size_t length = first < 0x80                     ? 1
                                   : first >= 0xC2 && first <= 0xDF ? 2
                                   : (first & 0xF0) == 0xE0         ? 3
                                   : first >= 0xF0 && first <= 0xF4 ? 4
                                                                    : 0;
        if (length == 0 || i + length > text.size()) return i;
        for (std::size_t k = 1; k < length; ++k)
            if ((byte(i + k) & 0xC0) != 0x80) return i;
        if (length > 1) {
            const unsigned second = byte(i + 1);
            if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F))
                return i;
        }
        i += length;
    }
    return std::nullopt;
}

// Ids 0 to 255 are bytes; the ids after them the most frequent words of the text, in that order. A
// word is a run of letters, digits, underscores and non-ASCII bytes with the space before it.
class vocabulary {
public:
    vocabulary(std::string_view text, std::size_t most_ids) {
        std::unordered_map<std::string_view, std::size_t> counts;
        for_each_word(text, [&](std::string_view word) { ++counts[word]; });
        std::vector<std::pair<std::size_t, std::string_view>> ranked;
        for (const auto& [word, count] : counts)
            if (word.size() > 1 && count > 1) ranked.emplace_back(count, word);
        std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
            return a.first != b.first ? a.first > b.first : a.second < b.second;
        });
        for (const auto& [count, word] : ranked) {
            if (size() >= most_ids) break;
            ids_.emplace(word, static_cast<std::int32_t>(size()));
        }
    }

    [[nodiscard]] std::size_t size() const { return 256 + ids_.size(); }

    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const {
        std::vector<std::int32_t> out;
        for_each_word(text, [&](std::string_view word) {
            if (const auto it = ids_.find(std::string(word)); it != ids_.end())
                out.push_back(it->second);
            else
                for (const char c : word) out.push_back(static_cast<unsigned char>(c));
        });
        return out;
    }

private:
    template <class Use>
    static void for_each_word(std::string_view text, const Use& use) {
        const auto inside = [&](std::size_t i) {
            const auto c = static_cast<unsigned char>(text[i]);
            return c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                   (c >= 'A' && c <= 'Z');
        };
        for (std::size_t i = 0; i < text.size();) {
            std::size_t end = i + 1;
            if (text[i] == ' ' || inside(i))
                while (end < text.size() && inside(end)) ++end;
            use(text.substr(i, end - i));
            i = end;
        }
    }

    std::unordered_map<std::string, std::int32_t> ids_;
};
