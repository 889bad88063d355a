// A model in a GGUF file, or in several of a split one.
#pragma once

#include <tiffin/io/gguf.hpp>
#include <tiffin/io/gguf_layers.hpp>
#include <tiffin/io/model_source.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
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

private:
    static status open_all(const std::filesystem::path& path, std::vector<gguf_file>& to) {
        auto first = gguf_file::open(path);
        if (!first) return first.failure();
        const std::uint64_t count = first->find<std::uint64_t>("split.count").value_or(1);
        const std::uint64_t number = first->find<std::uint64_t>("split.no").value_or(0);
        to.push_back(*std::move(first));
        if (count <= 1) return {};
        if (number != 0)
            return failure(errc::file, path.string(), "is file ", number + 1, " of a model split in ", count,
                           "; name the first");
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

    const gguf_architecture* architecture_ = nullptr;
    std::size_t layers_ = 0;
    std::vector<gguf_file> files_;
};

}  // namespace io::detail
TIFFIN_END
