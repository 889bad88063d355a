// Folds the memories and modulators of a layer file. Needs the JSON library (target tiffin::io).
#pragma once

#include <tiffin/all_policies.hpp>
#include <tiffin/cpu/fold.hpp>
#include <tiffin/io/block_texts.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>

#include <cstddef>
#include <filesystem>
#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// A layer file whose memories (meki, ple) and modulators (retoken) are folded to tables, at any nesting depth and in
// every expert of a mixture. In the metadata of the result, `folded` is "true".
class folded_layer {
public:
    // Folds all that can be folded. Errors: errc::option where a part is folded already, or nothing can be folded;
    // those of fold(). The result refers to the file's memory, which must outlive it.
    static result<folded_layer> from(const safetensors_file&& file, const fold_progress& = {},
                                     executor_ref = serial{}) = delete;
    static result<folded_layer> from(const safetensors_file& file, const fold_progress& progress = {},
                                     executor_ref execute = serial{}) {
        folded_layer made;
        made.metadata_ = file.metadata();
        std::set<std::string> replaced;
        for (const auto& [key, kind] : file.metadata()) {
            const bool is_block = key == "block" || key.ends_with(".block");
            if (!is_block || (kind != "meki" && kind != "ple" && kind != "retoken")) continue;
            const std::string keys = key.substr(0, key.size() - std::string_view("block").size());
            const auto mark = file.metadata().find(keys + "folded");
            if (mark != file.metadata().end() && mark->second == "true")
                return failure(errc::option, keys + "folded",
                               "is 'true'; what is folded already is not folded again");
            layer_options options(file.metadata());
            auto prefixes = tensor_prefixes(options, keys, file.tensors().entries().size());
            if (!prefixes) return prefixes.failure();
            for (const std::string& prefix : *prefixes) {
                // PLE without word embeddings has only a row per token: nothing to fold.
                if (kind == "ple" && file.tensors().find(prefix + "word_embed.weight") == nullptr) continue;
                const folding of{{options, file.tensors(), {prefix, keys}}, progress, execute};
                auto table = kind == "meki"  ? made.fold_memory(of)
                             : kind == "ple" ? made.fold_context(of)
                                             : made.fold_modulators(of);
                if (!table) return table.failure();
                for (const char* const gone :
                     {"memory.weight", "alpha", "beta", "mix_norm.weight", "word_embed.weight",
                      "word_norm.weight", "modulators.weight", "scale", "word_proj.weight",
                      "word_proj.gate_proj.weight", "word_proj.up_proj.weight", "word_proj.down_proj.weight",
                      "per_layer_model_projection.weight", "per_layer_projection_norm.weight"})
                    replaced.insert(prefix + gone);
                made.tables_.emplace_back(
                    prefix + (kind == "retoken" ? "modulators.weight" : "memory.weight"), *std::move(table));
                made.metadata_[keys + "folded"] = "true";
            }
        }
        if (made.tables_.empty())
            return failure(
                errc::option, "block",
                "is nothing that can be folded: known are meki, retoken, and ple with its context");
        for (const weights::entry& e : file.tensors().entries())
            if (!replaced.contains(e.name)) made.kept_.add(e.name, e.tensor);
        return made;
    }

    [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
    // The tensors of the folded layer; views of the file's memory and of this object's.
    [[nodiscard]] weights tensors() const {
        weights all = kept_;
        for (const auto& [name, table] : tables_) all.add(name, table.view());
        return all;
    }
    status write(const std::filesystem::path& path) const {
        auto file = unfinished_file::begin(path);
        if (!file) return file.failure();
        if (status s = write(*file); !s) return s;
        return file->finish();
    }
    // Writes to an output begun before; the caller calls its finish().
    status write(unfinished_file& to) const {
        safetensors_writer writer;
        for (const auto& [key, value] : metadata_) writer.set(key, value);
        const weights all = tensors();
        for (const weights::entry& e : all.entries()) writer.add(e.name, e.tensor);
        return writer.write(to);
    }

private:
    struct folding {
        detail::described_block block;
        const fold_progress& progress;
        executor_ref execute;
    };

    // The tensor prefixes of the blocks whose options have the prefix `keys`: all experts of a mixture share the
    // options `expert.`. More prefixes than `tensors` are refused.
    static result<std::vector<std::string>> tensor_prefixes(layer_options& options, const std::string& keys,
                                                            std::size_t tensors) {
        std::vector<std::string> all{""};
        for (std::size_t first = 0; first < keys.size();) {
            const std::size_t end = keys.find('.', first) + 1;
            const std::string part = keys.substr(first, end - first);
            std::size_t count = 1;
            if (part == "expert.")
                if (status s = options.read(keys.substr(0, first) + "num_experts", count); !s)
                    return s.failure();
            if (count > tensors / all.size())
                return failure(errc::option, keys.substr(0, first) + "num_experts", "is ", count,
                               "; the file has ", tensors, " tensors");
            std::vector<std::string> longer;
            for (const std::string& prefix : all)
                for (std::size_t e = 0; e < count; ++e)
                    longer.push_back(prefix +
                                     (part == "expert." ? "experts." + std::to_string(e) + "." : part));
            all = std::move(longer);
            first = end;
        }
        return all;
    }

    result<folded_table> fold_text(const folding& of, const std::string& text) {
        auto source = compose<tiffin::detail::folding_machine>(text, all_policies);
        if (!source) return source.failure();
        return fold(*source, of.block.given, of.block.at.tensors, of.progress, of.execute);
    }
    result<folded_table> fold_context(const folding& of) {
        std::string eps;
        if (status s = of.block.read_eps(eps, 1e-6f); !s) return s.failure();
        return fold_text(of, detail::text_of("ple_memory(eps=", eps, ")"));
    }
    result<folded_table> fold_memory(const folding& of) {
        std::string eps;
        if (status s = of.block.read_eps(eps, 1e-6f); !s) return s.failure();
        return fold_text(of, detail::memory_text(of.block, eps));
    }
    result<folded_table> fold_modulators(const folding& of) {
        std::string norm;
        if (status s = of.block.read_norm(norm); !s) return s.failure();
        return fold_text(of, detail::text_of("token_modulator(", norm, ")"));
    }

    std::map<std::string, std::string> metadata_;
    weights kept_;
    std::list<std::pair<std::string, folded_table>> tables_;
};

}  // namespace io
TIFFIN_END
