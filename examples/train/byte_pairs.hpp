// A tokenizer that is learned from text: byte-level byte pair encoding.
#pragma once

#include "counted_words.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// Told how much of a work is done.
using progress_sink = std::function<void(std::size_t done, std::size_t of)>;

// Ids 0 to 255 are the bytes, 256 separates documents, and each id after it stands for two ids before it.
class byte_pairs {
public:
    // At most `vocabulary` ids: fewer where no pair is left that is there twice. The same on every machine.
    // Throws std::invalid_argument where there are not ids enough for the bytes and the separator.
    static byte_pairs learn(const std::vector<std::string_view>& documents, std::size_t vocabulary,
                            const progress_sink& tell = {}) {
        byte_pairs learnt;
        const std::size_t least = learnt.size();
        if (vocabulary < least)
            throw std::invalid_argument("a vocabulary of " + std::to_string(vocabulary) +
                                        " ids is too small: the bytes and the end of a document take " +
                                        std::to_string(least));
        const std::size_t most = vocabulary - least;
        if (tell) tell(0, most);
        counted_words words(documents);
        while (learnt.size() < vocabulary) {
            const auto best = words.next();
            if (!best) break;
            words.merge(*best, static_cast<std::int32_t>(learnt.size()));
            learnt.add(best->left, best->right);
            if (tell) tell(learnt.size() - least, most);
        }
        if (tell) tell(most, most);
        return learnt;
    }

    // What merges() told. Throws std::runtime_error where that cannot be.
    static byte_pairs from(std::span<const std::int32_t> merges) {
        const auto refuse = [](const std::string& why) {
            throw std::runtime_error("the merges of a tokenizer are wrong: " + why);
        };
        if (merges.size() % 2 != 0) refuse(std::to_string(merges.size()) + " ids are no pairs");
        byte_pairs made;
        for (std::size_t i = 0; i < merges.size(); i += 2) {
            const std::string pair = "pair " + std::to_string(i / 2) + " (" + std::to_string(merges[i]) +
                                     ", " + std::to_string(merges[i + 1]) + ") ";
            std::size_t length = 0;
            for (const std::int32_t id : merges.subspan(i, 2)) {
                if (id < 0) refuse(pair + "has a negative id");
                if (id == end_id) refuse(pair + "has the end of a document in it");
                if (static_cast<std::size_t>(id) >= made.size())
                    refuse(pair + "names an id that is not made before it; there are " +
                           std::to_string(made.size()));
                length += made.text(id).size();
            }
            // Longer ones are in no word; and lengths that double each time would soon fill the memory.
            if (length > longest_word)
                refuse(pair + "makes " + std::to_string(length) + " bytes; words have at most " +
                       std::to_string(longest_word));
            if (made.find(merges[i], merges[i + 1]) >= 0) refuse(pair + "is there twice");
            made.add(merges[i], merges[i + 1]);
        }
        return made;
    }

    [[nodiscard]] std::size_t size() const { return texts_.size(); }
    // The id between documents; encode() does not write it.
    [[nodiscard]] std::int32_t end() const { return end_id; }
    // The pairs that are merged, one after the other, in the order of the ids that they make.
    [[nodiscard]] std::vector<std::int32_t> merges() const { return merges_; }
    // The bytes that an id stands for. Throws std::out_of_range.
    [[nodiscard]] std::string_view text(std::int32_t id) const {
        if (id < 0 || static_cast<std::size_t>(id) >= size())
            throw std::out_of_range("there is no token " + std::to_string(id) + "; there are " +
                                    std::to_string(size()));
        return texts_[static_cast<std::size_t>(id)];
    }

    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const {
        std::vector<std::int32_t> ids;
        // Where the ids of a word are that was there before.
        std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>> known;
        for_words(text, [&](std::string_view word) {
            const auto [at, is_new] = known.try_emplace(word, ids.size(), 0);
            const auto [begin, count] = at->second;
            if (is_new) append_word(word, ids);
            for (std::size_t i = 0; i < count; ++i) ids.push_back(ids[begin + i]);
            if (is_new) at->second.second = ids.size() - begin;
        });
        return ids;
    }

    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const {
        std::string made;
        for (const std::int32_t id : ids) made += text(id);
        return made;
    }

private:
    static constexpr std::int32_t end_id = 256;

    byte_pairs() {
        for (int byte = 0; byte < 256; ++byte) texts_.emplace_back(1, static_cast<char>(byte));
        texts_.emplace_back();
    }

    void add(std::int32_t left, std::int32_t right) {
        made_.emplace(pair_key(left, right), static_cast<std::int32_t>(size()));
        merges_.insert(merges_.end(), {left, right});
        texts_.push_back(std::string(text(left)).append(text(right)));
    }
    // The id of two neighbours, or -1.
    [[nodiscard]] std::int32_t find(std::int32_t left, std::int32_t right) const {
        const auto at = made_.find(pair_key(left, right));
        return at == made_.end() ? -1 : at->second;
    }
    // The bytes of a word, merged in the order in which the pairs were learnt.
    void append_word(std::string_view word, std::vector<std::int32_t>& ids) const {
        const std::size_t begin = ids.size();
        for (const char byte : word) ids.push_back(static_cast<unsigned char>(byte));
        for (;;) {
            std::size_t at = 0;
            std::int32_t first = -1;
            for (std::size_t i = begin; i + 1 < ids.size(); ++i)
                if (const std::int32_t id = find(ids[i], ids[i + 1]); id >= 0 && (first < 0 || id < first)) {
                    at = i;
                    first = id;
                }
            if (first < 0) return;
            ids[at] = first;
            ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
        }
    }

    std::vector<std::string> texts_;
    std::vector<std::int32_t> merges_;
    std::unordered_map<std::uint64_t, std::int32_t> made_;
};
