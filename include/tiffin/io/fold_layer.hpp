// Folding the memories and modulators of a layer file. Needs the JSON library (target tiffin::io).
#pragma once

#include <tiffin/backend/fold.hpp>
#include <tiffin/io/layer_blocks.hpp>
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

TIFFIN_BEGIN
namespace io {

// A layer file whose memories (meki) and modulators (retoken) are folded to tables, at whatever depth.
// The result is marked: `folded` is "true" in its metadata.
class folded_layer {
public:
    // Folds what there is to fold. Errors: errc::option where a part is folded already, or nothing can be
    // folded; those of fold(). The file's memory is read, and must outlive the result.
    static result<folded_layer> from(const safetensors_file& file, const fold_progress& progress = {},
                                     executor_ref execute = serial{}) {
        folded_layer made;
        made.metadata_ = file.metadata();
        std::set<std::string> replaced;
        for (const auto& [key, kind] : file.metadata()) {
            if (!key.ends_with("block") || (kind != "meki" && kind != "retoken")) continue;
            const std::string prefix = key.substr(0, key.size() - std::string_view("block").size());
            const auto mark = file.metadata().find(prefix + "folded");
            if (mark != file.metadata().end() && mark->second == "true")
                return failure{errc::option, prefix + "folded",
                               "is 'true'; what is folded already is not folded again"};
            layer_options options(file.metadata());
            const folding of{file.tensors(), prefix, options, progress, execute};
            auto table = kind == "meki" ? made.fold_memory(of) : made.fold_modulators(of);
            if (!table) return table.failure();
            const char* const name = kind == "meki" ? "memory.weight" : "modulators.weight";
            for (const char* const gone :
                 {"memory.weight", "alpha", "beta", "mix_norm.weight", "word_embed.weight",
                  "word_norm.weight", "modulators.weight", "scale", "word_proj.gate_proj.weight",
                  "word_proj.up_proj.weight", "word_proj.down_proj.weight"})
                replaced.insert(prefix + gone);
            made.tables_.emplace_back(prefix + name, *std::move(table));
            made.metadata_[prefix + "folded"] = "true";
        }
        if (made.tables_.empty())
            return failure{errc::option, "block",
                           "is nothing that can be folded: known are meki and retoken"};
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
        safetensors_writer writer;
        for (const auto& [key, value] : metadata_) writer.set(key, value);
        const weights all = tensors();
        for (const weights::entry& e : all.entries()) writer.add(e.name, e.tensor);
        return writer.write(path);
    }

private:
    struct folding {
        const weights& given;
        std::string prefix;
        layer_options& options;
        const fold_progress& progress;
        executor_ref execute;
    };

    result<folded_table> fold_memory(const folding& of) {
        float eps = 1e-6f;
        if (status s = of.options.read(of.prefix + "eps", eps); !s) return s.failure();
        return detail::with_memory_form(of.given, of.prefix, [&]<class Memory>(std::type_identity<Memory>) {
            Memory memory;
            detail::set_eps(memory, eps);
            return fold(memory, of.given, of.prefix, of.progress, of.execute);
        });
    }
    result<folded_table> fold_modulators(const folding& of) {
        token_modulator<any_norm> modulator;
        any_norm& norm = modulator.row.norm;
        if (status s = of.options.read(of.prefix + "norm", norm_names, norm.kind); !s) return s.failure();
        if (status s = of.options.read(of.prefix + "eps", norm.eps); !s) return s.failure();
        return fold(modulator, of.given, of.prefix, of.progress, of.execute);
    }

    std::map<std::string, std::string> metadata_;
    weights kept_;
    std::list<std::pair<std::string, folded_table>> tables_;
};

}  // namespace io
TIFFIN_END
