// The tokenizer of a GGUF file: byte-level BPE ("gpt2"), SentencePiece's ("llama"), or its characters with merges ("gemma4").
#pragma once

#include <tiffin/io/gguf.hpp>
#include <tiffin/quoted.hpp>

#include "byte_letters.hpp"
#include "merges.hpp"
#include "pre_tokenizer.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// Texts to token ids and back. The file's texts are read where they lie: the file must outlive it.
class tokenizer {
public:
    // Throws std::runtime_error for a tokenizer that is not known, or incomplete.
    explicit tokenizer(const tiffin::io::gguf_file& file) : label_(file.label()) {
        const auto model = file.find<std::string_view>("tokenizer.ggml.model");
        if (!model) refuse("tokenizer.ggml.model is missing");
        by_merges_ = *model != "llama";
        sentence_piece_ = *model != "gpt2";
        if (by_merges_ && sentence_piece_ && *model != "gemma4")
            refuse("the tokenizer is " + quoted(*model) + "; known are 'gpt2', 'llama' and 'gemma4'");
        read_tokens(file);
        if (by_merges_) {
            const auto merges = file.find<tiffin::io::gguf_array>("tokenizer.ggml.merges");
            if (!merges || merges->type != tiffin::io::gguf_type::string)
                refuse("tokenizer.ggml.merges is missing, or no texts");
            merges->for_texts([&](std::string_view pair) { ranks_.emplace(pair, ranks_.size()); });
        }
        if (sentence_piece_) {
            spaced_ = told<bool>(file, "add_space_prefix").value_or(!by_merges_);
        } else {
            if (told<bool>(file, "add_space_prefix").value_or(false))
                refuse(
                    "tokenizer.ggml.add_space_prefix is true; a blank before byte-level texts is not known");
            const auto name = told<std::string_view>(file, "pre").value_or("default");
            const auto rules = pre_tokenizer(name);
            if (!rules)
                refuse("the pre-tokenizer is " + quoted(name) +
                       "; known are 'smollm', 'gpt-2', 'default', 'llama-bpe' and 'qwen2'");
            rules_ = *rules;
            whole_words_ = name == "llama-bpe";
        }
        const auto id = [&](const char* key) {
            const auto found = told<std::uint64_t>(file, key);
            if (found && *found >= tokens_.size())
                refuse(std::string("tokenizer.ggml.") + key + " is " + std::to_string(*found) +
                       ", none of the " + std::to_string(tokens_.size()) + " tokens");
            return found ? std::optional(static_cast<std::int32_t>(*found)) : std::nullopt;
        };
        for (const char* const key : {"eos_token_id", "eot_token_id", "eom_token_id"})
            if (const auto found = id(key)) ends_.push_back(*found);
        adds_end_ = told<bool>(file, "add_eos_token").value_or(false);
        if (told<bool>(file, "add_bos_token").value_or(sentence_piece_ || whole_words_)) {
            begin_ = id("bos_token_id");
            if (!begin_)
                refuse("texts begin with a token of their own, but tokenizer.ggml.bos_token_id is missing");
        }
    }

    [[nodiscard]] std::size_t size() const { return tokens_.size(); }
    // The token that texts begin with (BOS), where the file says so.
    [[nodiscard]] std::optional<std::int32_t> begin() const { return begin_; }
    // Whether texts end with a token of their own.
    [[nodiscard]] bool adds_end() const { return adds_end_; }
    [[nodiscard]] bool is_end(std::int32_t id) const {
        return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
    }

    // The ids of a text, begin() first. With `markers` the texts of control tokens in it become these tokens.
    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, bool markers) const {
        std::vector<std::int32_t> ids;
        if (begin_) ids.push_back(*begin_);
        bool after_token = true;
        for (const auto& [piece, id] : fragments(text, markers)) {
            if (id >= 0)
                ids.push_back(id);
            else if (sentence_piece_)
                encode_sentence(piece, after_token && spaced_, ids);
            else
                encode_words(piece, ids);
            after_token = id >= 0;
        }
        return ids;
    }

    // The bytes that a token stands for; none for control tokens. Precondition: a token.
    [[nodiscard]] std::string decode(std::int32_t id) const {
        const auto i = static_cast<std::size_t>(id);
        const std::string_view text = tokens_[i];
        std::string made;
        if (kinds_[i] == control) return made;
        if (kinds_[i] == given) return std::string(text);
        if (sentence_piece_) {
            for (int byte = 0; kinds_[i] == single_byte && byte < 256; ++byte)
                if (text == byte_name(byte)) return std::string(1, static_cast<char>(byte));
            return with_spaces(text);
        }
        for (const char32_t c : code_points(text)) {
            const auto byte = std::find(letters_.begin(), letters_.end(), c);
            if (byte == letters_.end())
                append_utf8(made, c);
            else
                made.push_back(static_cast<char>(static_cast<unsigned char>(byte - letters_.begin())));
        }
        return made;
    }

private:
    // Kinds of tokens, as numbered in files.
    static constexpr int unknown = 2, control = 3, given = 4, single_byte = 6;

    static std::string quoted(std::string_view text) { return tiffin::detail::in_quotes(text); }
    [[noreturn]] void refuse(const std::string& why) const { throw std::runtime_error(label_ + ": " + why); }
    // The value of a key of the tokenizer; none where it is missing.
    template <class T>
    std::optional<T> told(const tiffin::io::gguf_file& file, const char* name) const {
        const std::string key = std::string("tokenizer.ggml.") + name;
        const auto found = file.find<T>(key);
        if (!found && file.metadata().contains(key))
            refuse(key + " is of another kind of value than is read");
        return found;
    }
    void read_tokens(const tiffin::io::gguf_file& file) {
        using tiffin::io::gguf_array;
        const auto texts = file.find<gguf_array>("tokenizer.ggml.tokens");
        if (texts) texts->for_texts([&](std::string_view text) { tokens_.push_back(text); });
        if (tokens_.empty()) refuse("tokenizer.ggml.tokens is missing, or no texts");
        for (std::size_t i = 0; i < tokens_.size(); ++i) ids_[tokens_[i]] = static_cast<std::int32_t>(i);
        kinds_.assign(tokens_.size(), 1);
        const auto read_numbers = [&](const char* key, auto& to, bool needed) {
            const auto found = file.find<gguf_array>(key);
            if (!found && !needed) return;
            if (!found || found->size != tokens_.size() || found->type == tiffin::io::gguf_type::string ||
                found->type == tiffin::io::gguf_type::array)
                refuse(std::string(key) + " is missing, or not a number for each of the " +
                       std::to_string(tokens_.size()) + " tokens");
            to.resize(tokens_.size());
            for (std::size_t i = 0; i < to.size(); ++i)
                to[i] = found->number<typename std::remove_reference_t<decltype(to)>::value_type>(i);
        };
        read_numbers("tokenizer.ggml.token_type", kinds_, false);
        read_numbers("tokenizer.ggml.scores", scores_, !by_merges_);
        for (std::size_t i = 0; i < tokens_.size(); ++i)
            if ((kinds_[i] == unknown || kinds_[i] == control || kinds_[i] == given) && !tokens_[i].empty())
                special_.push_back(static_cast<std::int32_t>(i));
        std::stable_sort(special_.begin(), special_.end(), [&](std::int32_t a, std::int32_t b) {
            return tokens_[static_cast<std::size_t>(a)].size() > tokens_[static_cast<std::size_t>(b)].size();
        });
    }
    // A text as pieces without an id, and special tokens with theirs: the longest texts are found first.
    [[nodiscard]] std::vector<std::pair<std::string_view, std::int32_t>> fragments(std::string_view text,
                                                                                   bool markers) const {
        std::vector<std::pair<std::string_view, std::int32_t>> made, next;
        if (!text.empty()) made.emplace_back(text, -1);
        for (const std::int32_t id : special_) {
            const std::string_view name = tokens_[static_cast<std::size_t>(id)];
            if ((!markers && kinds_[static_cast<std::size_t>(id)] != given)) continue;
            next.clear();
            for (auto [piece, known] : made) {
                for (std::size_t at = 0; known < 0 && (at = piece.find(name)) != piece.npos;) {
                    if (at > 0) next.emplace_back(piece.substr(0, at), -1);
                    next.emplace_back(name, id);
                    piece.remove_prefix(at + name.size());
                }
                if (!piece.empty()) next.emplace_back(piece, known);
            }
            made.swap(next);
        }
        return made;
    }

    [[nodiscard]] std::int32_t find(std::string_view text) const {
        const auto at = ids_.find(text);
        return at == ids_.end() ? -1 : at->second;
    }
    // Joins by the place of "left right" among the merges, or by the score of both.
    template <class Put>
    void merge(std::string_view text, const Put& put) const {
        std::string key;
        const auto rank = [&](std::string_view both, std::size_t left) -> std::optional<double> {
            const std::int32_t id = by_merges_ ? -1 : find(both);
            if (id >= 0) return -double{scores_[static_cast<std::size_t>(id)]};
            key.assign(both.substr(0, left)).append(1, ' ').append(both.substr(left));
            const auto at = ranks_.find(key);
            return at == ranks_.end() ? std::nullopt : std::optional(static_cast<double>(at->second));
        };
        for_merged(text, rank, put);
    }
    void encode_words(std::string_view text, std::vector<std::int32_t>& ids) const {
        std::string word, bytes;
        const auto put = [&](std::string_view symbol) {
            if (const std::int32_t id = find(symbol); id >= 0) return ids.push_back(id);
            for (const char byte : symbol)
                if (const std::int32_t id = find({&byte, 1}); id >= 0) ids.push_back(id);
        };
        for_pieces(code_points(text), rules_, [&](std::u32string_view piece) {
            bytes.clear();
            for (const char32_t c : piece) append_utf8(bytes, c);
            word.clear();
            for (const char byte : bytes) append_utf8(word, letters_[static_cast<unsigned char>(byte)]);
            if (whole_words_ && find(word) >= 0) return put(word);
            merge(word, put);
        });
    }
    void encode_sentence(std::string_view text, bool spaced, std::vector<std::int32_t>& ids) const {
        const std::string shown = with_shown_spaces((spaced ? " " : "") + std::string(text));
        const auto put = [&](std::string_view symbol) {
            if (const std::int32_t id = find(symbol); id >= 0) return ids.push_back(id);
            for (const char byte : symbol) {
                std::int32_t id = find(byte_name(static_cast<unsigned char>(byte)));
                if (id < 0) id = find({&byte, 1});
                if (id >= 0) ids.push_back(id);
            }
        };
        // Merges end with a line; several ends of lines may be one token.
        for (std::string_view rest = shown; !rest.empty();) {
            const bool ends = rest[0] == '\n';
            const std::size_t next = ends ? rest.find_first_not_of('\n') : rest.find('\n');
            const std::string_view piece = by_merges_ ? rest.substr(0, next) : rest;
            rest.remove_prefix(piece.size());
            by_merges_&& ends&& find(piece) >= 0 ? put(piece) : merge(piece, put);
        }
    }

    std::string label_;
    bool sentence_piece_ = false, by_merges_ = false, spaced_ = false, whole_words_ = false,
         adds_end_ = false;
    std::vector<std::string_view> tokens_;
    std::vector<int> kinds_;
    std::vector<float> scores_;
    std::unordered_map<std::string_view, std::int32_t> ids_;
    std::unordered_map<std::string_view, std::size_t> ranks_;
    std::vector<std::int32_t> special_;
    std::array<char32_t, 256> letters_ = byte_letters();
    std::vector<piece_rule> rules_;
    std::optional<std::int32_t> begin_;
    std::vector<std::int32_t> ends_;
};
