// A model in one GGUF file, or in the several files of a split model.
#pragma once

#include <tiffin/io/gguf.hpp>
#include <tiffin/io/gguf_layers.hpp>
#include <tiffin/io/model_source.hpp>
#include <tiffin/quoted.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

class gguf_model final : public model_source {
public:
    static result<std::shared_ptr<const model_source>> open(const std::filesystem::path& path) {
        auto made = std::make_shared<gguf_model>();
        if (status s = open_all(path, made->files_); !s) return s.failure();
        const gguf_file& first = made->files_[0];
        const auto name = first.find<std::string_view>("general.architecture");
        if (!name)
            return failure(errc::option, first.label(), "general.architecture is missing from the metadata");
        std::string known;
        for (const gguf_architecture& a : gguf_architectures) {
            if (a.name == *name) made->architecture_ = &a;
            known.append(known.empty() ? "" : ", ").append(a.name);
        }
        if (made->architecture_ == nullptr)
            return failure(errc::option, first.label(), "the architecture is ",
                           tiffin::detail::in_quotes(*name), "; known are ", known);
        const auto layers = first.find<std::uint64_t>(std::string(*name) + ".block_count");
        if (!layers || *layers > (1u << 20))
            return failure(errc::option, first.label(), *name,
                           ".block_count is missing, or no number of layers");
        made->layers_ = static_cast<std::size_t>(*layers);
        return std::shared_ptr<const model_source>(std::move(made));
    }

    [[nodiscard]] std::string_view architecture() const noexcept override { return architecture_->name; }
    [[nodiscard]] std::size_t layers() const noexcept override { return layers_; }
    [[nodiscard]] const std::string& label() const noexcept override { return files_[0].label(); }
    [[nodiscard]] result<described_layer> layer(std::size_t index) const override {
        return gguf_layer_reader(files_, *architecture_, index).read();
    }

    // See open_gguf_files().
    static status open_all(const std::filesystem::path& path, std::vector<gguf_file>& to);

private:
    // The value of a metadata key of split models; none where it is missing.
    // Errors: errc::file where it is no unsigned integer.
    static result<std::optional<std::uint64_t>> split_key(const gguf_file& file, const char* key) {
        const auto told = file.find<std::uint64_t>(key);
        if (told || !file.metadata().contains(key)) return told;
        return failure(errc::file, file.label(), key, " is no whole number from 0 on");
    }

    static status open_others(const std::filesystem::path& path, std::uint64_t count,
                              std::vector<gguf_file>& to) {
        const std::string name = path.filename().string();
        char ending[40];
        const auto end_of = [&](std::uint64_t i) {
            std::snprintf(ending, sizeof ending, "-%05llu-of-%05llu.gguf",
                          static_cast<unsigned long long>(i + 1), static_cast<unsigned long long>(count));
            return std::string_view(ending);
        };
        if (count > 99999 || !name.ends_with(end_of(0)))
            return failure(errc::file, path.string(), "is the first file of a model split in ", count,
                           "; its name must end in ", end_of(0));
        const std::string stem = name.substr(0, name.size() - end_of(0).size());
        for (std::uint64_t i = 1; i < count; ++i) {
            auto next = gguf_file::open(path.parent_path() / (stem + std::string(end_of(i))));
            if (!next) return next.failure();
            if (next->find<std::uint64_t>("split.count") != count ||
                next->find<std::uint64_t>("split.no") != i)
                return failure(errc::file, next->label(), "is not file ", i + 1, " of a model split in ",
                               count);
            to.push_back(*std::move(next));
        }
        return {};
    }
    // Checks that each tensor is in one file only, and that none is missing.
    static status check_tensors(const std::vector<gguf_file>& files) {
        std::map<std::string_view, const gguf_file*> file_of;
        for (const gguf_file& file : files) {
            status s;
            const auto note = [&](const std::string& name) {
                if (const auto [first, fresh] = file_of.emplace(name, &file); !fresh && s)
                    s = failure(errc::duplicate_tensor, file.label(), "tensor ",
                                tiffin::detail::in_quotes(name), " is given twice, here and in ",
                                first->second->label());
            };
            for (const weights::entry& e : file.tensors().entries()) note(e.name);
            for (const unread_tensor& t : file.unread()) note(t.name);
            if (!s) return s;
        }
        for (const gguf_file& file : files) {
            const auto told = split_key(file, "split.tensors.count");
            if (!told) return told.failure();
            if (told->value_or(file_of.size()) != file_of.size())
                return failure(errc::file, file.label(), "has split.tensors.count ", **told, "; there are ",
                               file_of.size(), " tensors in ", files.size(),
                               files.size() == 1 ? " file" : " files");
        }
        return {};
    }

    const gguf_architecture* architecture_ = nullptr;
    std::size_t layers_ = 0;
    std::vector<gguf_file> files_;
};

inline status gguf_model::open_all(const std::filesystem::path& path, std::vector<gguf_file>& to) {
    auto first = gguf_file::open(path);
    if (!first) return first.failure();
    const auto told_count = split_key(*first, "split.count"), told_number = split_key(*first, "split.no");
    if (!told_count) return told_count.failure();
    if (!told_number) return told_number.failure();
    const std::uint64_t count = told_count->value_or(1), number = told_number->value_or(0);
    to.push_back(*std::move(first));
    if (number != 0 && number >= count)
        return failure(errc::file, path.string(), "has split.no ", number, " where split.count is ", count);
    if (number != 0)
        return failure(errc::file, path.string(), "is file ", number + 1, " of a model split in ", count,
                       "; name the first");
    if (count > 1)
        if (status s = open_others(path, count, to); !s) return s;
    // Merged files keep the split keys of their parts, but with split.count 0: their tensor count is not checked.
    return count == 0 ? status() : check_tensors(to);
}

}  // namespace io::detail

namespace io {

// The files of a model: one GGUF file, or those of a split model, of which `path` is the first.
// Errors: those of gguf_file::open; errc::file where they are not one model.
inline result<std::vector<gguf_file>> open_gguf_files(const std::filesystem::path& path) {
    std::vector<gguf_file> files;
    if (status s = detail::gguf_model::open_all(path, files); !s) return s.failure();
    return {std::move(files)};
}

}  // namespace io
TIFFIN_END
