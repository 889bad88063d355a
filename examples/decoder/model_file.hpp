// The keys and tensors of a Llama-like model in a GGUF file, each checked where it is asked for.
#pragma once

#include <tiffin/format/given_format.hpp>
#include <tiffin/io/gguf.hpp>
#include <tiffin/io/quantised_parts.hpp>
#include <tiffin/quoted.hpp>

#include "../support/row_matrix.hpp"
#include "known_keys.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

// What architectures do not have in common. Pairs of numbers that are rotated: (2i, 2i + 1), else (i, i + n / 2).
struct architecture {
    std::string_view name;
    bool rotates_neighbours = false;
    bool normed_heads = false;       // an RMS norm over each head's query and key
    bool scaled_embeddings = false;  // by the root of d_model
    bool normed_outputs = false;     // an RMS norm of what attention and FFN add to the stream
    // Of so many layers, the last sees all tokens before, the others a window of them, at positions of their own; 0: all see
    // all.
    std::size_t windowed = 0;
};
inline constexpr std::array<architecture, 6> architectures{{
    {.name = "llama", .rotates_neighbours = true},
    {.name = "qwen2"},
    {.name = "qwen3", .normed_heads = true},
    {.name = "qwen3moe", .normed_heads = true},
    {.name = "gemma", .scaled_embeddings = true},
    {.name = "gemma3",
     .normed_heads = true,
     .scaled_embeddings = true,
     .normed_outputs = true,
     .windowed = 6},
}};

// What is wrong is thrown, as one sentence that names the file.
class model_file {
public:
    explicit model_file(const std::filesystem::path& path)
        : file_(tiffin::io::gguf_file::open(path).or_throw()) {
        const auto name = file_.find<std::string_view>("general.architecture");
        if (!name) refuse("general.architecture is missing from the metadata");
        std::string known;
        for (const architecture& a : architectures) {
            if (a.name == *name) kind_ = &a;
            known.append(known.empty() ? "" : ", ").append(a.name);
        }
        if (kind_ == nullptr)
            refuse("the architecture is " + tiffin::detail::in_quotes(*name) + "; this decoder knows " +
                   known);
        if (file_.find<std::uint64_t>("split.count").value_or(1) > 1)
            refuse("is one file of a model split in several; this decoder reads models of one file");
        if (const std::string wrong = unread_key(file_, kind_->name, kind_->windowed); !wrong.empty())
            refuse(wrong);
    }

    [[nodiscard]] const tiffin::io::gguf_file& file() const { return file_; }
    [[nodiscard]] const architecture& kind() const { return *kind_; }
    [[noreturn]] void refuse(const std::string& why) const {
        throw std::runtime_error(file_.label() + ": " + why);
    }

    [[nodiscard]] bool has(std::string_view key) const { return file_.metadata().contains(full(key)); }
    // The value of a key of the architecture, of type T; none where it is missing.
    template <class T>
    [[nodiscard]] std::optional<T> find(std::string_view key) const {
        const auto found = file_.find<T>(full(key));
        if (!found && has(key)) refuse(full(key) + " is of another kind of value than is read");
        return found;
    }
    // A whole number from 1 to 2^31 - 1.
    [[nodiscard]] std::size_t count(std::string_view key, std::optional<std::size_t> otherwise = {}) const {
        if (otherwise && !has(key)) return *otherwise;
        const auto found = file_.find<std::uint64_t>(full(key));
        if (!found || *found == 0 || *found > std::numeric_limits<std::int32_t>::max())
            refuse(full(key) + " is missing, or no number from 1 to 2147483647");
        return static_cast<std::size_t>(*found);
    }
    // A number above 0.
    [[nodiscard]] double positive(std::string_view key, std::optional<double> otherwise = {}) const {
        if (otherwise && !has(key)) return *otherwise;
        const auto found = file_.find<double>(full(key));
        if (!found || !(*found > 0) || !std::isfinite(*found))
            refuse(full(key) + " is missing, or no number above 0");
        return *found;
    }

    // A tensor of this shape; none where it may be missing.
    [[nodiscard]] std::optional<tiffin::tensor_view> tensor(const std::string& name,
                                                            const tiffin::shape& sizes,
                                                            bool optional = false) {
        const tiffin::tensor_view* const found = file_.tensors().find(name);
        if (found == nullptr) {
            for (const tiffin::io::unread_tensor& t : file_.unread())
                if (t.name == name)
                    refuse("tensor " + name + " is of ggml's type " + std::to_string(t.type) + " (" +
                           std::string(tiffin::io::gguf_unread_name(t.type)) + ") and of shape " +
                           to_string(t.shape) + ", which is not read");
            if (optional) return std::nullopt;
            refuse("tensor " + name + " is missing");
        }
        if (to_string(found->shape) != to_string(sizes) || is_integer(found->type))
            refuse("tensor " + name + " is " + std::string(name_of(found->type)) + " of shape " +
                   to_string(found->shape) + "; it must be numbers of shape " + to_string(sizes));
        used_.insert(name);
        return *found;
    }
    // Its numbers as f32.
    [[nodiscard]] row_matrix matrix(const std::string& name, std::size_t count, std::size_t width) {
        const auto given = tensor(name, {count, width});
        row_matrix made(as_index(count), as_index(width));
        tiffin::read_as_f32(*given, 0, count * width, made.data());
        return made;
    }
    // None where it may be missing and is.
    [[nodiscard]] row_vector vector(const std::string& name, std::size_t width, bool optional = false) {
        const auto given = tensor(name, {width}, optional);
        row_vector made(as_index(given ? width : 0));
        if (given) tiffin::read_as_f32(*given, 0, width, made.data());
        return made;
    }

    // Throws where a tensor was not asked for: it would be a part of the model that is not computed. Those of the
    // FFNs of the model's layers are checked by tiffin, but for norms.
    void check_all_used(std::size_t layers) const {
        const auto check = [&](const std::string& name) {
            if (used_.contains(name) || is_of_ffn(name, layers)) return;
            const std::string_view part = tiffin::io::quantised_part(name);
            refuse("tensor " + tiffin::detail::in_quotes(name) + " is not known of '" +
                   std::string(kind_->name) + "'" +
                   (part.empty() ? ""
                                 : ": it is " + std::string(part) +
                                       ", and weights that are quantised so are not read"));
        };
        for (const tiffin::weights::entry& e : file_.tensors().entries()) check(e.name);
        for (const tiffin::io::unread_tensor& t : file_.unread()) check(t.name);
    }

private:
    static bool is_of_ffn(std::string_view name, std::size_t layers) {
        if (!name.starts_with("blk.")) return false;
        std::size_t layer = 0;
        const auto [end, wrong] = std::from_chars(name.data() + 4, name.data() + name.size(), layer);
        if (wrong != std::errc{} || layer >= layers) return false;
        name.remove_prefix(static_cast<std::size_t>(end - name.data()));
        return name == ".exp_probs_b.bias" || (name.starts_with(".ffn_") && !name.starts_with(".ffn_norm.") &&
                                               !name.starts_with(".ffn_post_norm."));
    }
    [[nodiscard]] std::string full(std::string_view key) const {
        return std::string(kind_->name) + "." + std::string(key);
    }

    tiffin::io::gguf_file file_;
    const architecture* kind_ = nullptr;
    std::set<std::string> used_;
};
