// A checkpoint of safetensors files: Hugging Face's, with config.json, or Meta Lingua's, with params.json.
#pragma once

#include <tiffin/io/checkpoint_config.hpp>
#include <tiffin/io/checkpoint_layers.hpp>
#include <tiffin/io/model_source.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/quoted.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

class checkpoint final : public model_source {
public:
    // `path`: the folder, or its config.json.
    static result<std::shared_ptr<const model_source>> open(const std::filesystem::path& path) {
        auto made = std::make_shared<checkpoint>();
        const bool of_config = path.filename() == "config.json";
        made->folder_ = of_config ? path.parent_path() : path;
        made->label_ = path.string();
        if (status s = made->config_.read(made->folder_, made->label_); !s) return s.failure();
        if (status s = made->open_files(); !s) return s.failure();
        return std::shared_ptr<const model_source>(std::move(made));
    }

    [[nodiscard]] std::string_view architecture() const noexcept override { return config_.type; }
    [[nodiscard]] std::size_t layers() const noexcept override { return config_.layers; }
    [[nodiscard]] const std::string& label() const noexcept override { return label_; }

    [[nodiscard]] result<described_layer> layer(std::size_t index) const override {
        return checkpoint_layer_reader(files_, config_, index).read();
    }

private:
    status open_files() {
        std::set<std::string> names;
        if (const auto index = read_json(folder_ / "model.safetensors.index.json")) {
            const auto map = index->find("weight_map");
            if (map == index->end() || !map->is_object())
                return failure(errc::file, label_, "model.safetensors.index.json has no weight_map");
            for (const auto& [tensor, file] : map->items()) {
                const std::string name = file.is_string() ? file.template get<std::string>() : "";
                // Files of this folder, and no others.
                if (name.empty() || std::filesystem::path(name).filename() != name)
                    return failure(errc::file, label_, "model.safetensors.index.json has ",
                                   tiffin::detail::in_quotes(tensor), " in no file of its folder");
                names.insert(name);
            }
        } else if (config_.is_lingua && !is_there("model.safetensors")) {
            if (!is_there("consolidated.safetensors") && is_there("consolidated.pth"))
                return failure(errc::file, label_,
                               "has consolidated.pth, which is Python's; save its tensors, and those of "
                               "consolidated_stem.pth, as .safetensors beside it");
            names.insert("consolidated.safetensors");
            // STEM's tables.
            if (is_there("consolidated_stem.safetensors")) names.insert("consolidated_stem.safetensors");
        } else {
            names.insert("model.safetensors");
        }
        for (const std::string& name : names) {
            auto opened = safetensors_file::map(folder_ / name);
            if (!opened) return opened.failure();
            files_.push_back(*std::move(opened));
        }
        return {};
    }

    [[nodiscard]] bool is_there(const char* name) const {
        std::error_code ignored;
        return std::filesystem::exists(folder_ / name, ignored);
    }

    std::filesystem::path folder_;
    std::string label_;
    checkpoint_config config_;
    std::vector<safetensors_file> files_;
};

}  // namespace io::detail
TIFFIN_END
