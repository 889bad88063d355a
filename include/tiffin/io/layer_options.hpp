// The options of a layer file: strings by key, of which each must be read by a block.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/safetensors_format.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

TIFFIN_BEGIN
namespace io {

// The `__metadata__` of a layer file while its block is built. A key that has not been read when the block is complete
// is an unknown option. Keys are given with the prefix of the block they belong to.
class layer_options {
public:
    explicit layer_options(const std::map<std::string, std::string>& metadata) : metadata_(metadata) {
        known_.insert("format");  // written by safetensors' own writers; no option of the block
    }

    // The option's text, or null where it is not given.
    const std::string* find(const std::string& key) {
        known_.insert(key);
        const auto it = metadata_.find(key);
        return it == metadata_.end() ? nullptr : &it->second;
    }
    [[nodiscard]] bool has(const std::string& key) const { return metadata_.contains(key); }

    // Each read() sets `to` where the option is given, and leaves it unchanged otherwise.
    // One of `words`.
    status read(const std::string& key, std::span<const std::string_view> words, std::string_view& to) {
        const std::string* const text = find(key);
        if (text == nullptr) return {};
        std::string all;
        for (const std::string_view word : words) {
            if (word == *text) {
                to = word;
                return {};
            }
            all.append(all.empty() ? "" : ", ").append(word);
        }
        return failure(errc::option, key, "is ", detail::in_quotes(*text), "; known are ", all);
    }
    // An integer from 1 up.
    status read(const std::string& key, std::size_t& to) {
        const std::string* const text = find(key);
        if (text == nullptr) return {};
        std::size_t value = 0;
        const char* const end = text->data() + text->size();
        const auto [rest, bad] = std::from_chars(text->data(), end, value);
        // The largest size_t is every_expert, which no file can ask for.
        if (bad != std::errc() || rest != end || value == 0 || value == ~std::size_t{0})
            return failure(errc::option, key, "is ", detail::in_quotes(*text),
                           "; it must be a whole number from 1 up");
        to = value;
        return {};
    }
    // A finite float >= 0, with a decimal point in every locale.
    status read(const std::string& key, float& to) {
        const std::string* const text = find(key);
        if (text == nullptr) return {};
        float value = 0;
        const char* const end = text->data() + text->size();
        const auto [rest, bad] = std::from_chars(text->data(), end, value);
        if (bad != std::errc() || rest != end || !std::isfinite(value) || text->starts_with('-'))
            return failure(errc::option, key, "is ", detail::in_quotes(*text),
                           "; it must be a number not below 0 that f32 can hold");
        to = value;
        return {};
    }
    status read(const std::string& key, bool& to) {
        static constexpr std::array<std::string_view, 2> words{{"false", "true"}};
        std::string_view word = words[to];
        status s = read(key, words, word);
        to = word == words[1];
        return s;
    }

    // Fails for an option that `block` has not read. The keys `<name>.format` of tensors are not among them: reading
    // the file has removed those that it applied (see safetensors.hpp).
    [[nodiscard]] status check_all_known(std::string_view block) const {
        for (const auto& [key, value] : metadata_) {
            if (known_.contains(key)) continue;
            if (key.ends_with(format_suffix))
                return failure(
                    errc::option, key, "is ", detail::in_quotes(value), "; it must be one of ",
                    detail::known_formats(), ", and tensor ",
                    detail::in_quotes(std::string_view(key).substr(0, key.size() - format_suffix.size())),
                    " be there in bytes (U8)");
            return failure(errc::option, key, "is not an option of block ", detail::in_quotes(block),
                           " (its value is ", detail::in_quotes(value), ")");
        }
        return {};
    }

private:
    const std::map<std::string, std::string>& metadata_;
    std::set<std::string> known_;
};

namespace detail {

// The name prefixes of a block's tensors and options in a file.
struct block_place {
    std::string tensors, keys;
};

}  // namespace detail
}  // namespace io
TIFFIN_END
