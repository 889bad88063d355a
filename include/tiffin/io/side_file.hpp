// Side files: blocks with their own tables around the blocks of a model. Needs the JSON library (target tiffin::io).
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/described_layer.hpp>
#include <tiffin/io/ngram_layer.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/quoted.hpp>

#include <charconv>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

TIFFIN_BEGIN
namespace io {

// One safetensors file beside a model. Metadata and tensors of layer I have the prefix `blk.I.`; without it they are a
// layer file (docs/layer_files.md) that can refer to the model's own block, or to its weights.
//
//     blk.3.block = retoken          the model's FFN of layer 3, modulated by
//     blk.3.base.block = model       blk.3.modulators.weight (V, d), blk.3.scale (d)
//     blk.5.block = stem_hybrid      a table beside the model's own up projection:
//     blk.5.weights = model          blk.5.stem_embed.weight (V, f)
//     blk.7.ngrams.block = engram_addresses   blk.7.ngrams.weight (rows, width): the block's per_layer_input
//
// `block = model` inserts the model's block with its options and tensors; `weights = model` its tensors alone, and
// `weights = gate_proj down_proj` those of these names. Source: ours; docs/models.md#side-files.
class side_file {
public:
    // Maps the file. Errors: those of safetensors_file::map; errc::option for metadata, errc::unused_tensor for a
    // tensor, whose name has no layer prefix (except `format`, which safetensors' own writers put into every file);
    // errc::option for a file that has nothing for any layer.
    static result<side_file> open(const std::filesystem::path& path) {
        auto file = safetensors_file::map(path);
        if (!file) return file.failure();
        side_file made;
        made.file_ = std::make_shared<const safetensors_file>(*std::move(file));
        for (const auto& [key, value] : made.file_->metadata())
            if (key != "format" && !made.note(key)) return made.wrong(errc::option, key);
        for (const weights::entry& e : made.file_->tensors().entries())
            if (!made.note(e.name)) return made.wrong(errc::unused_tensor, e.name);
        if (made.layers_.empty())
            return failure(
                errc::option, made.label(),
                "has something for no layer: neither metadata nor tensors are called blk.<layer>.");
        return {std::move(made)};
    }

    // The layers that it has metadata or tensors for, ascending.
    [[nodiscard]] const std::set<std::size_t>& layers() const noexcept { return layers_; }
    // The path; failures carry it as `where`.
    [[nodiscard]] const std::string& label() const noexcept { return file_->label(); }

    // The block of a layer around the model's own block `own`; the result keeps both files open.
    // Errors: errc::option where the file has no such layer, or names weights that the model's block does not have.
    //   Other errors are left to load_layer().
    [[nodiscard]] result<described_layer> around(std::size_t layer, const described_layer& own) const {
        const std::string prefix = prefix_of(layer);
        if (!layers_.contains(layer)) return failure(errc::option, label(), "has nothing for layer ", layer);
        described_layer made;
        made.keep =
            std::make_shared<const std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
                file_, own.keep);
        for (const weights::entry& e : file_->tensors().entries())
            if (e.name.starts_with(prefix) && !e.name.starts_with(prefix + "ngrams."))
                made.tensors.add(e.name.substr(prefix.size()), e.tensor);
        for (const auto& [key, value] : file_->metadata()) {
            if (!key.starts_with(prefix) || key.starts_with(prefix + "ngrams.")) continue;
            const std::string inside = key.substr(prefix.size());
            if (is_called(inside, "block") && value == "model") {
                put_block(own, inside.substr(0, inside.size() - 5), made);
            } else if (is_called(inside, "weights")) {
                if (status s = put_weights(own, value, inside.substr(0, inside.size() - 7), made); !s)
                    return failure(s.failure().code, label(), key, ": ", s.failure().message());
            } else {
                made.options.emplace(inside, value);
            }
        }
        return made;
    }

    // The rows by the last ids that are the per_layer_input of a layer's block, where it has some.
    // Errors: those of read_ngram_layer(); errc::missing_tensor where it has no table.
    [[nodiscard]] result<std::optional<ngram_layer>> ngrams(std::size_t layer) const {
        const std::string prefix = prefix_of(layer) + "ngrams.";
        described_layer given;
        given.keep = file_;
        for (const weights::entry& e : file_->tensors().entries())
            if (e.name.starts_with(prefix)) given.tensors.add(e.name.substr(prefix.size()), e.tensor);
        for (const auto& [key, value] : file_->metadata())
            if (key.starts_with(prefix)) given.options.emplace(key.substr(prefix.size()), value);
        if (given.options.empty() && given.tensors.entries().empty()) return std::optional<ngram_layer>();
        auto made = read_ngram_layer(given);
        if (made && made->table.data == nullptr)
            return failure(errc::missing_tensor, label(), prefix,
                           "weight is missing: the rows of all tables");
        if (!made) return failure(made.failure().code, label(), prefix, made.failure().message());
        return std::optional(*std::move(made));
    }

private:
    side_file() = default;

    static std::string prefix_of(std::size_t layer) { return "blk." + std::to_string(layer) + "."; }
    static bool is_called(std::string_view key, std::string_view name) {
        return key == name || (key.ends_with(name) && key[key.size() - name.size() - 1] == '.');
    }
    failure wrong(errc code, const std::string& name) const {
        return failure(code, label(), tiffin::detail::in_quotes(name),
                       " belongs to no layer: names begin with blk.<layer>.");
    }
    bool note(std::string_view name) {
        if (!name.starts_with("blk.")) return false;
        name.remove_prefix(4);
        std::size_t layer = 0;
        const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), layer);
        if (code != std::errc{} || end == name.data() + name.size() || *end != '.') return false;
        layers_.insert(layer);
        return true;
    }
    static void put_block(const described_layer& own, const std::string& at, described_layer& to) {
        for (const auto& [key, value] : own.options) to.options.emplace(at + key, value);
        for (const weights::entry& e : own.tensors.entries()) to.tensors.add(at + e.name, e.tensor);
    }
    // Adds all tensors (`model`), or those of the names listed, separated by blanks.
    static status put_weights(const described_layer& own, std::string_view names, const std::string& at,
                              described_layer& to) {
        const bool all = names == "model";
        while (!names.empty()) {
            const std::string_view one = names.substr(0, names.find(' '));
            names.remove_prefix(one.size() < names.size() ? one.size() + 1 : names.size());
            std::size_t found = 0;
            for (const weights::entry& e : own.tensors.entries())
                if (all || e.name.substr(0, e.name.rfind('.')) == one) {
                    to.tensors.add(at + e.name, e.tensor);
                    ++found;
                }
            if (found == 0)
                return failure(errc::option, one, "the model's block has no weights of this name");
        }
        return {};
    }

    std::shared_ptr<const safetensors_file> file_;
    std::set<std::size_t> layers_;
};

}  // namespace io
TIFFIN_END
