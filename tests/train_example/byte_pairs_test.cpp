// The tokenizer of examples/train: what is learnt from a text, against one that counts all pairs anew each time.
#include "../../examples/train/byte_pairs.hpp"

#include "support/doctest.hpp"
#include "support/random.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace train_example_byte_pairs_test {

namespace {

using ids = std::vector<std::int32_t>;
using word_list = std::vector<std::string>;

word_list words_of(std::string_view text) {
    word_list words;
    for_words(text, [&](std::string_view word) { words.emplace_back(word); });
    return words;
}

// The same words by another way: the kinds of the bytes as letters, and GPT-2's pattern over them.
word_list words_by_pattern(const std::string& text) {
    std::string kinds;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        const bool letter =
            byte >= 0x80 || std::string_view("abcdefghijklmnopqrstuvwxyz").find(c) != std::string::npos;
        kinds += c == ' '                                                      ? '_'
                 : std::string_view("\n\t\r\v\f").find(c) != std::string::npos ? 'w'
                 : letter                                                      ? 'l'
                 : c >= '0' && c <= '9'                                        ? 'd'
                                                                               : 'm';
    }
    const std::regex pattern("_?l+|_?d{1,3}|_?m+|[_w]+(?=_[ldm])|[_w]+");
    word_list words;
    for (std::sregex_iterator at(kinds.begin(), kinds.end(), pattern), end; at != end; ++at)
        words.push_back(
            text.substr(static_cast<std::size_t>(at->position()), static_cast<std::size_t>(at->length())));
    return words;
}

void merge_in(ids& word, std::pair<std::int32_t, std::int32_t> what, std::int32_t made) {
    ids after;
    for (std::size_t i = 0; i < word.size(); ++i) {
        const bool here = i + 1 < word.size() && word[i] == what.first && word[i + 1] == what.second;
        after.push_back(here ? made : word[i]);
        i += here ? 1 : 0;
    }
    word = after;
}

struct naive {
    ids merges;
    ids text;  // all documents, merged

    naive(const std::vector<std::string_view>& documents, std::size_t vocabulary) {
        std::vector<ids> words;
        for (const std::string_view document : documents)
            for (const std::string& word : words_by_pattern(std::string(document))) {
                ids& bytes = words.emplace_back();
                for (const char c : word) bytes.push_back(static_cast<unsigned char>(c));
            }
        while (257 + merges.size() / 2 < vocabulary) {
            std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> counts;
            for (const ids& word : words)
                for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
            std::pair<std::int32_t, std::int32_t> best;
            std::size_t most = 1;
            for (const auto& [pair, count] : counts)  // lower ids come first
                if (count > most) {
                    best = pair;
                    most = count;
                }
            if (most < 2) break;
            const auto made = static_cast<std::int32_t>(257 + merges.size() / 2);
            for (ids& word : words) merge_in(word, best, made);
            merges.insert(merges.end(), {best.first, best.second});
        }
        for (const ids& word : words) text.insert(text.end(), word.begin(), word.end());
    }
};

// Of few letters, so that pairs are frequent and their counts are often equal.
std::string random_text(tiffin_test::random_numbers& random, std::size_t length) {
    constexpr std::string_view letters = "aaaabbbc  \n\t12.-\xC3\xA9";
    std::string text;
    while (text.size() < length) text.push_back(letters[random.below(letters.size())]);
    return text;
}

ids encoded(const byte_pairs& by, const std::vector<std::string_view>& documents) {
    ids all;
    for (const std::string_view document : documents)
        for (const std::int32_t id : by.encode(document)) all.push_back(id);
    return all;
}

template <class Error, class Work>
std::string message_of(const Work& work) {
    try {
        work();
    } catch (const Error& e) {
        return e.what();
    }
    return "nothing was thrown";
}

}  // namespace

TEST_CASE("byte pairs: words are letters, digits by threes, marks and white space, and nothing is lost") {
    CHECK(words_of("Hello  world, 12345 don't\n\n x_y  ") == word_list{"Hello", " ", " world", ",", " 123",
                                                                       "45", " don", "'", "t", "\n\n", " x",
                                                                       "_", "y", "  "});
    CHECK(words_of("\xC3\xA9t\xC3\xA9 \n") == word_list{"\xC3\xA9t\xC3\xA9", " \n"});
    CHECK(words_of(" ") == word_list{" "});
    CHECK(words_of("").empty());
    // What is longer than a word may be is cut.
    CHECK(words_of(std::string(longest_word + 1, 'x') + " " + std::string(longest_word, 'y')) ==
          word_list{std::string(longest_word, 'x'), "x", " " + std::string(longest_word - 1, 'y'), "y"});
    CHECK(words_of(std::string(longest_word + 1, ' ') + "x") ==
          word_list{std::string(longest_word, ' '), " x"});
    tiffin_test::random_numbers random(1);
    for (int i = 0; i < 200; ++i) {
        const std::string text = random_text(random, 60);
        CHECK(words_of(text) == words_by_pattern(text));
    }
}

TEST_CASE("byte pairs: merges by hand") {
    // Words: "ab" twice, " ab" twice, " abc" once. Pairs: (a, b) 5; then (' ', ab) 3; then nothing is there twice.
    const std::vector<std::string_view> documents{"ab ab abc", "ab ab"};
    const byte_pairs made = byte_pairs::learn(documents, 1000);
    CHECK(made.merges() == ids{'a', 'b', ' ', 257});
    CHECK(made.size() == 259);
    CHECK(made.text(257) == "ab");
    CHECK(made.text(258) == " ab");
    CHECK(made.encode("ab abc cab") == ids{257, 258, 'c', ' ', 'c', 257});
    CHECK(byte_pairs::learn(documents, 258).merges() == ids{'a', 'b'});
    CHECK(byte_pairs::learn(documents, 257).merges().empty());
    // Of equal counts the lower left id is first, then the lower right one; a pair across words is none.
    CHECK(byte_pairs::learn({"by\nbx\nay\nax", "-ax-ay-bx-by"}, 261).merges() ==
          ids{'a', 'x', 'a', 'y', 'b', 'x', 'b', 'y'});
    // A run: (a, a) is there three times in four letters, and no more in two pairs; (257, 257) twice.
    CHECK(byte_pairs::learn({"aaaa", "aaaa"}, 300).merges() == ids{'a', 'a', 257, 257});
}

TEST_CASE("byte pairs: bytes, the end of a document, and bounds") {
    const byte_pairs bare = byte_pairs::learn({}, 257);
    REQUIRE(bare.size() == 257);
    CHECK(bare.end() == 256);
    CHECK(bare.text(256).empty());
    for (std::int32_t byte = 0; byte < 256; ++byte) {
        const std::string one(1, static_cast<char>(byte));
        CHECK(bare.text(byte) == one);
        CHECK(bare.encode(one) == ids{byte});
    }
    CHECK(bare.decode(ids{'a', bare.end(), 'b'}) == "ab");
    CHECK(message_of<std::out_of_range>([&] { static_cast<void>(bare.text(257)); }) ==
          "there is no token 257; there are 257");
    CHECK(message_of<std::out_of_range>([&] { static_cast<void>(bare.decode(ids{-1})); }) ==
          "there is no token -1; there are 257");
    CHECK(message_of<std::invalid_argument>([] { byte_pairs::learn({"text"}, 256); }) ==
          "a vocabulary of 256 ids is too small: the bytes and the end of a document take 257");
}

TEST_CASE("byte pairs: all bytes come back") {
    tiffin_test::random_numbers random(2);
    std::string learnt;
    for (int i = 0; i < 20000; ++i)
        learnt.push_back(static_cast<char>(random.below(3) > 0 ? 'a' + random.below(6) : random.below(256)));
    const byte_pairs made = byte_pairs::learn({learnt}, 600);
    REQUIRE(made.size() == 600);
    CHECK(made.decode(made.encode(learnt)) == learnt);
    CHECK(made.encode(learnt).size() < learnt.size() * 3 / 4);
    for (int i = 0; i < 100; ++i) {
        std::string text;
        for (std::size_t n = random.below(300); n > 0; --n)
            text.push_back(static_cast<char>(random.below(256)));
        CHECK(made.decode(made.encode(text)) == text);
    }
    CHECK(made.encode("").empty());
}

TEST_CASE(
    "byte pairs: the merges are those of a learner that counts anew each time, and encoding repeats them") {
    tiffin_test::random_numbers random(3);
    for (std::size_t i = 0; i < 60; ++i) {
        CAPTURE(i);
        std::vector<std::string> texts;
        for (std::size_t d = 0; d < 1 + i % 3; ++d) texts.push_back(random_text(random, 20 + 15 * i));
        const std::vector<std::string_view> documents(texts.begin(), texts.end());
        const std::size_t vocabulary =
            i % 4 == 0 ? 5000 : 257 + 4 * i;  // the first until no pair is there twice
        const naive expected(documents, vocabulary);
        const byte_pairs made = byte_pairs::learn(documents, vocabulary);
        REQUIRE(made.merges() == expected.merges);
        CHECK(made.size() == 257 + expected.merges.size() / 2);
        CHECK(encoded(made, documents) == expected.text);
    }
}

TEST_CASE("byte pairs: the same from the same text, whatever lies between its documents") {
    tiffin_test::random_numbers random(4);
    const std::string text = random_text(random, 4000), other = random_text(random, 3000);
    const ids merges = byte_pairs::learn({text, other}, 400).merges();
    CHECK(byte_pairs::learn({std::string(text), std::string(other)}, 400).merges() == merges);
    CHECK(byte_pairs::learn({other, text}, 400).merges() == merges);
    CHECK(byte_pairs::learn({text}, 400).merges() != merges);
    // What is learnt first does not depend on how much is.
    const ids fewer = byte_pairs::learn({text, other}, 300).merges();
    CHECK(ids(merges.begin(), merges.begin() + std::ssize(fewer)) == fewer);
}

TEST_CASE("byte pairs: kept as merges, and made of them again") {
    tiffin_test::random_numbers random(5);
    const std::string text = random_text(random, 3000);
    const byte_pairs made = byte_pairs::learn({text}, 350), again = byte_pairs::from(made.merges());
    REQUIRE(made.size() > 300);
    CHECK(again.merges() == made.merges());
    CHECK(again.size() == made.size());
    const std::string unseen = random_text(random, 500);
    CHECK(again.encode(unseen) == made.encode(unseen));
    // A copy has its texts itself.
    std::optional<byte_pairs> copied_from(made);
    const byte_pairs copy = *copied_from;
    copied_from.reset();
    CHECK(copy.decode(copy.encode(unseen)) == unseen);
    CHECK(byte_pairs::from({}).size() == 257);
}

TEST_CASE("byte pairs: merges that cannot be are refused") {
    const auto refused = [](const ids& merges) {
        return message_of<std::runtime_error>([&] { byte_pairs::from(merges); });
    };
    const std::string begin = "the merges of a tokenizer are wrong: ";
    CHECK(refused({'a', 'b', 257}) == begin + "3 ids are no pairs");
    CHECK(refused({'a', -1}) == begin + "pair 0 (97, -1) has a negative id");
    CHECK(refused({'a', 'b', 257, 256}) == begin + "pair 1 (257, 256) has the end of a document in it");
    CHECK(refused({'a', 'b', 258, 'c'}) ==
          begin + "pair 1 (258, 99) names an id that is not made before it; there are 258");
    CHECK(refused({257, 257}) ==
          begin + "pair 0 (257, 257) names an id that is not made before it; there are 257");
    CHECK(refused({'a', 'b', 'c', 'd', 'a', 'b'}) == begin + "pair 2 (97, 98) is there twice");
    // 2, 4, ... 64 bytes, and 128.
    ids doubled{'a', 'a'};
    for (std::int32_t id = 257; id < 262; ++id) doubled.insert(doubled.end(), {id, id});
    CHECK(byte_pairs::from(doubled).text(262) == std::string(64, 'a'));
    doubled.insert(doubled.end(), {262, 262});
    CHECK(refused(doubled) == begin + "pair 6 (262, 262) makes 128 bytes; words have at most 64");
}

TEST_CASE("byte pairs: learning tells how far it is") {
    std::vector<std::pair<std::size_t, std::size_t>> told;
    const progress_sink tell = [&](std::size_t done, std::size_t of) { told.emplace_back(done, of); };
    byte_pairs::learn({"ab ab abc", "ab ab"}, 267, tell);
    CHECK(told == std::vector<std::pair<std::size_t, std::size_t>>{{0, 10}, {1, 10}, {2, 10}, {10, 10}});
}

}  // namespace train_example_byte_pairs_test
