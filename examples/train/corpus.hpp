// Documents from files: as plain text, each text once, and some of them held out.
#pragma once

#include "plain_text.hpp"
#include "text_file.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

// Told how much of a work is done.
using progress_sink = std::function<void(std::size_t done, std::size_t of)>;

struct document {
    std::string path;
    std::string text;
};

struct corpus_counts {
    std::size_t files = 0;      // looked at: skipped + too_short + duplicates + documents
    std::size_t skipped = 0;    // no text, data, too large, or not readable
    std::size_t too_short = 0;  // or with too little that was not there before
    std::size_t duplicates = 0;
    std::size_t documents = 0;
    std::size_t paragraphs_dropped = 0;
    std::size_t bytes = 0;  // of the documents
};

struct corpus {
    std::vector<document> documents;
    corpus_counts counts;
};

// FNV-1a, of 64 bits.
inline std::uint64_t fnv1a(std::string_view text) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
    return hash;
}

// What makes documents of files.
class corpus_reader {
public:
    // Files in folders that are as large are left out, and drawings and data; those that are named are not.
    static constexpr std::size_t too_large = std::size_t{8} << 20;
    static constexpr std::size_t shortest_document = 200, shortest_paragraph = 100;

    // Precondition: a file.
    void read(const std::filesystem::path& path, bool is_named) {
        ++made_.counts.files;
        std::optional<std::string> found;
        if (is_named || !text_file::is_data(path))
            found = text_file::read(path, is_named ? static_cast<std::size_t>(-1) : too_large);
        if (!found) {
            ++made_.counts.skipped;
            return;
        }
        // Two texts of one hash are as good as impossible: there are millions, and 2^64 hashes.
        if (!texts_.insert(fnv1a(*found)).second) {
            ++made_.counts.duplicates;
            return;
        }
        std::string text = without_known_paragraphs(*found);
        if (text.size() < shortest_document) {
            ++made_.counts.too_short;
            return;
        }
        ++made_.counts.documents;
        made_.counts.bytes += text.size();
        made_.documents.push_back({path.string(), std::move(text)});
    }

    [[nodiscard]] corpus finish() && { return std::move(made_); }

private:
    // Leaves out what was a paragraph before, in this document or another one, however its lines were broken.
    std::string without_known_paragraphs(std::string_view text) {
        std::string made, letters;
        while (!text.empty()) {
            const std::string_view paragraph = text.substr(0, text.find("\n\n"));
            text.remove_prefix(std::min(text.size(), paragraph.size() + 2));
            letters.clear();
            for (const char c : paragraph)
                if (!plain_text::is_blank(c)) letters.push_back(c);
            if (paragraph.size() >= shortest_paragraph && !paragraphs_.insert(fnv1a(letters)).second)
                ++made_.counts.paragraphs_dropped;
            else
                made.append(made.empty() ? "" : "\n\n").append(paragraph);
        }
        return made;
    }

    corpus made_;
    std::unordered_set<std::uint64_t> texts_, paragraphs_;
};

// The documents of files and of all files in folders, in the order of their paths. Links in folders are not followed.
// Throws std::runtime_error for a path that is not there, and where no document is found.
inline corpus read_corpus(const std::vector<std::filesystem::path>& from, const progress_sink& tell = {}) {
    namespace fs = std::filesystem;
    std::map<fs::path, bool> files;  // whether it was named
    std::string names;
    for (const fs::path& path : from) {
        names.append(names.empty() ? "" : ", ").append(path.string());
        if (fs::is_regular_file(path)) {
            files[path] = true;
        } else if (fs::is_directory(path)) {
            constexpr auto skip = fs::directory_options::skip_permission_denied;
            for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path, skip))
                if (entry.symlink_status().type() == fs::file_type::regular)
                    files.emplace(entry.path(), false);
        } else {
            throw std::runtime_error(path.string() + " is neither a file nor a folder");
        }
    }
    corpus_reader reader;
    std::size_t done = 0;
    for (const auto& [path, is_named] : files) {
        if (tell) tell(done++, files.size());
        reader.read(path, is_named);
    }
    if (tell) tell(files.size(), files.size());
    corpus made = std::move(reader).finish();
    if (made.documents.empty())
        throw std::runtime_error("no text to read in " + (names.empty() ? "no files" : names) + ": of " +
                                 std::to_string(made.counts.files) + " files " +
                                 std::to_string(made.counts.skipped) + " are no text, and " +
                                 std::to_string(made.counts.too_short) + " have less than " +
                                 std::to_string(corpus_reader::shortest_document) + " bytes");
    return made;
}

inline std::vector<document> read_documents(const std::vector<std::filesystem::path>& from,
                                            const progress_sink& tell = {}) {
    return read_corpus(from, tell).documents;
}
// The same, and what became of the files.
inline std::vector<document> read_documents(const std::vector<std::filesystem::path>& from,
                                            corpus_counts* counts) {
    corpus made = read_corpus(from);
    if (counts != nullptr) *counts = made.counts;
    return std::move(made.documents);
}

struct split_corpus {
    std::vector<document> learnt, held_out;
};

// Holds out about a share of the documents: which, depends on each one's text alone, so that those that are held out
// stay so when others come. Throws std::runtime_error where a side has none.
inline split_corpus split(std::vector<document> documents, double share) {
    split_corpus made;
    for (document& d : documents) {
        // The rest of a prime depends on all bits of the hash; its upper ones know little of the last bytes.
        constexpr std::uint64_t prime = 1000003;
        const bool is_held_out =
            static_cast<double>(fnv1a(d.text) % prime) < share * static_cast<double>(prime);
        (is_held_out ? made.held_out : made.learnt).push_back(std::move(d));
    }
    if (made.learnt.empty() || made.held_out.empty())
        throw std::runtime_error("of " + std::to_string(documents.size()) + " documents " +
                                 std::to_string(made.held_out.size()) + " are held out with a share of " +
                                 std::to_string(share) + ", and " + std::to_string(made.learnt.size()) +
                                 " are left to learn from: give more text, or another share");
    return made;
}

// Where a Debian system keeps documents in English; those that are there.
inline std::vector<std::filesystem::path> usual_places() {
    namespace fs = std::filesystem;
    std::vector<fs::path> places;
    for (const char* const folder :
         {"/usr/share/doc", "/usr/share/man/man1", "/usr/share/man/man2", "/usr/share/man/man3",
          "/usr/share/man/man5", "/usr/share/man/man7", "/usr/share/man/man8"})
        if (std::error_code ignored; fs::is_directory(folder, ignored)) places.emplace_back(folder);
    // Perl's own documents lie among its code.
    const fs::path perl = "/usr/share/perl";
    if (std::error_code ignored; fs::is_directory(perl, ignored))
        for (const fs::directory_entry& entry :
             fs::recursive_directory_iterator(perl, fs::directory_options::skip_permission_denied))
            if (entry.symlink_status().type() == fs::file_type::regular &&
                entry.path().extension() == ".pod" && entry.file_size() < corpus_reader::too_large)
                places.push_back(entry.path());
    return places;
}
