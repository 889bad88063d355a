// The keys and tensors of a Llama-like model in a GGUF file, each checked where it is asked for.
#pragma once

#include <tiffin/format/given_format.hpp>
#include <tiffin/io/gguf.hpp>
#include <tiffin/io/quantised_parts.hpp>
#include <tiffin/quoted.hpp>

#include "../support/row_matrix.hpp"
#include "architectures.hpp"
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
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

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
        if (const std::string wrong = unread_key(file_, kind_->name, kind_->keys); !wrong.empty())
            refuse(wrong);
        layers_ = count("block_count");
    }

    [[nodiscard]] const tiffin::io::gguf_file& file() const { return file_; }
    [[nodiscard]] const architecture& kind() const { return *kind_; }
    [[nodiscard]] std::size_t layers() const { return layers_; }
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
    // The same of a layer, where the file may have a number for each.
    [[nodiscard]] std::size_t count_of(std::string_view key, std::size_t layer,
                                       std::optional<std::size_t> otherwise = {}) const {
        const auto all = file_.find<tiffin::io::gguf_array>(full(key));
        if (!all) return count(key, otherwise);
        const double told = numbers(*all, key)[layer];
        if (!(told >= 1 && told <= std::numeric_limits<std::int32_t>::max()))
            refuse(full(key) + " of layer " + std::to_string(layer) + " is no number from 1 to 2147483647");
        return static_cast<std::size_t>(told);
    }
    // Whether a layer's tokens see a window of those before.
    [[nodiscard]] bool is_windowed(std::size_t layer) const {
        constexpr const char* key = "attention.sliding_window_pattern";
        if (const auto all = file_.find<tiffin::io::gguf_array>(full(key)))
            return numbers(*all, key)[layer] != 0;
        const std::size_t of = count(key, kind_->windowed);
        return of > 0 && layer % of != of - 1;
    }
    // The layer whose keys and values a layer reads: its own, or, where the last layers share those before, the last of
    // these that sees as much.
    [[nodiscard]] std::size_t keys_of(std::size_t layer) const {
        constexpr const char* key = "attention.shared_kv_layers";
        const std::size_t usual =
            kind_->own_keys > 0 && layers_ > kind_->own_keys ? layers_ - kind_->own_keys : 0;
        const auto shared = static_cast<std::size_t>(find<std::uint64_t>(key).value_or(usual));
        if (shared > layers_)
            refuse(full(key) + " is " + std::to_string(shared) + " of " + std::to_string(layers_) +
                   " layers");
        std::size_t own = layers_ - shared;
        if (layer < own) return layer;
        while (own > 0 && is_windowed(own - 1) != is_windowed(layer)) --own;
        if (own == 0)
            refuse("no layer before layer " + std::to_string(layer) +
                   " has keys and values that it could read");
        return own - 1;
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
    // Several of them, behind each other in a tensor.
    [[nodiscard]] std::vector<row_matrix> matrices(const std::string& name, std::size_t n, std::size_t count,
                                                   std::size_t width) {
        const auto given = tensor(name, {n, count, width});
        std::vector<row_matrix> made(n, row_matrix(as_index(count), as_index(width)));
        for (std::size_t i = 0; i < n; ++i)
            tiffin::read_as_f32(*given, i * count * width, count * width, made[i].data());
        return made;
    }
    [[nodiscard]] bool is_there(const std::string& name) const {
        return file_.tensors().find(name) != nullptr;
    }
    // A tensor that another reads, or none does.
    void pass_over(const std::string& name) { used_.insert(name); }
    // None where it may be missing and is.
    [[nodiscard]] row_vector vector(const std::string& name, std::size_t width, bool optional = false) {
        const auto given = tensor(name, {width}, optional);
        row_vector made(as_index(given ? width : 0));
        if (given) tiffin::read_as_f32(*given, 0, width, made.data());
        return made;
    }

    // Throws where a tensor was not asked for: it would be a part of the model that is not computed. Those of the
    // FFNs of the model's layers are checked by tiffin, but for norms.
    void check_all_used() const {
        const auto check = [&](const std::string& name) {
            if (used_.contains(name) || is_of_ffn(name, layers_)) return;
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
    // An array with a number, or a bool, per layer.
    [[nodiscard]] std::vector<double> numbers(const tiffin::io::gguf_array& all, std::string_view key) const {
        using tiffin::io::gguf_type;
        if (all.size != layers_ || all.type == gguf_type::string || all.type == gguf_type::array)
            refuse(full(key) + " are " + std::to_string(all.size) + " values; there are " +
                   std::to_string(layers_) + " layers, with a number each");
        std::vector<double> made(layers_);
        for (std::size_t i = 0; i < layers_; ++i) made[i] = all.number<double>(i);
        return made;
    }
    [[nodiscard]] std::string full(std::string_view key) const {
        return std::string(kind_->name) + "." + std::string(key);
    }

    tiffin::io::gguf_file file_;
    const architecture* kind_ = nullptr;
    std::size_t layers_ = 0;
    std::set<std::string> used_;
};
