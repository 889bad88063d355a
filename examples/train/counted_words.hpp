// The words of a text, and the pairs of neighbours in them: what a tokenizer learns from.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

// The most bytes of a word. A longer run is cut, so that no text takes more than time in its length.
inline constexpr std::size_t longest_word = 64;

// The length of the word at the front of a text: letters, one to three digits or other marks, each with the space
// before them, or white space, which leaves its last space to what follows. Bytes from 0x80 on are letters. These
// are GPT-2's rules without its contractions. Precondition: the text is not empty.
inline std::size_t word_length(std::string_view text) {
    enum class kind { letter, digit, space, mark };
    const auto kind_at = [&](std::size_t i) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (c == ' ' || (c >= '\t' && c <= '\r')) return kind::space;
        if (c >= '0' && c <= '9') return kind::digit;
        const bool letter = c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        return letter ? kind::letter : kind::mark;
    };
    const std::size_t first = text[0] == ' ' && text.size() > 1 && kind_at(1) != kind::space ? 1 : 0;
    const kind of = kind_at(first);
    const std::size_t most = std::min(text.size(), of == kind::digit ? first + 3 : longest_word);
    std::size_t end = first + 1;
    while (end < most && kind_at(end) == of) ++end;
    const bool leaves_space = of == kind::space && end > 1 && end < text.size() && text[end - 1] == ' ' &&
                              kind_at(end) != kind::space;
    return leaves_space ? end - 1 : end;
}

template <class Use>
void for_words(std::string_view text, const Use& use) {
    while (!text.empty()) {
        const std::size_t length = word_length(text);
        use(text.substr(0, length));
        text.remove_prefix(length);
    }
}

// Two neighbours as a key.
inline std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
}

// The distinct words of a text as ids, and how often each pair of neighbours is in the text.
class counted_words {
public:
    struct pair {
        std::uint64_t count;
        std::int32_t left, right;
        // Last of all is what is to be merged next: the most frequent pair, of several the one with lower ids.
        friend bool operator<(const pair& a, const pair& b) {
            return std::tuple(a.count, b.left, b.right) < std::tuple(b.count, a.left, a.right);
        }
    };

    explicit counted_words(const std::vector<std::string_view>& documents) {
        std::unordered_map<std::string_view, std::uint64_t> counts;
        for (const std::string_view document : documents)
            for_words(document, [&](std::string_view text) { ++counts[text]; });
        for (const auto& [text, count] : counts) {
            words_.push_back({ids_.size(), text.size(), count});
            for (const char byte : text) ids_.push_back(static_cast<unsigned char>(byte));
        }
        for (std::size_t w = 0; w < words_.size(); ++w)
            for (std::size_t i = 1; i < words_[w].length; ++i)
                add(ids_[words_[w].begin + i - 1], ids_[words_[w].begin + i], w);
        offer_new_pairs();
    }

    // The pair to merge next, or nothing where none is there twice.
    [[nodiscard]] std::optional<pair> next() {
        while (!queue_.empty()) {
            const pair top = queue_.top();
            // Counts in the queue may be too high: a merge takes from the pairs around it, and adds only to new ones.
            const std::uint64_t count = uses_.at(pair_key(top.left, top.right)).count;
            if (count == top.count) return top;
            queue_.pop();
            if (count > 1) queue_.push({count, top.left, top.right});
        }
        return std::nullopt;
    }

    // Writes `made`, an id that no word has, in place of a pair that next() told.
    void merge(const pair& what, std::int32_t made) {
        const std::vector<std::size_t> words = std::move(uses_.at(pair_key(what.left, what.right)).words);
        for (const std::size_t w : words) {
            word& in = words_[w];
            std::int32_t* const at = ids_.data() + in.begin;
            std::size_t kept = 0;
            for (std::size_t i = 0; i < in.length; ++i, ++kept) {
                at[kept] = at[i];
                if (at[i] != what.left || i + 1 == in.length || at[i + 1] != what.right) continue;
                take(what.left, what.right, in.count);
                if (kept > 0) {
                    take(at[kept - 1], what.left, in.count);
                    add(at[kept - 1], made, w);
                }
                if (i + 2 < in.length) {
                    take(what.right, at[i + 2], in.count);
                    add(made, at[i + 2], w);
                }
                at[kept] = made;
                ++i;
            }
            in.length = kept;
        }
        offer_new_pairs();
    }

private:
    struct word {
        std::size_t begin, length;  // in ids_
        std::uint64_t count;
    };
    struct uses {
        std::uint64_t count = 0;
        std::vector<std::size_t> words;  // that had the pair when it was new; a word may be there twice
    };

    void add(std::int32_t left, std::int32_t right, std::size_t in) {
        uses& of = uses_[pair_key(left, right)];
        if (of.words.empty()) new_pairs_.emplace_back(left, right);
        if (of.words.empty() || of.words.back() != in) of.words.push_back(in);
        of.count += words_[in].count;
    }
    void take(std::int32_t left, std::int32_t right, std::uint64_t count) {
        uses_.at(pair_key(left, right)).count -= count;
    }
    void offer_new_pairs() {
        for (const auto& [left, right] : new_pairs_)
            if (const std::uint64_t count = uses_.at(pair_key(left, right)).count; count > 1)
                queue_.push({count, left, right});
        new_pairs_.clear();
    }

    std::vector<std::int32_t> ids_;
    std::vector<word> words_;
    std::unordered_map<std::uint64_t, uses> uses_;
    std::vector<std::pair<std::int32_t, std::int32_t>> new_pairs_;
    std::priority_queue<pair> queue_;
};
