// A checkpoint of safetensors files: Hugging Face's, with config.json, or Meta Lingua's, with params.json.
#pragma once

#include <tiffin/io/checkpoint_config.hpp>
#include <tiffin/io/checkpoint_layers.hpp>
#include <tiffin/io/checkpoint_tensors.hpp>
#include <tiffin/io/model_source.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

TIFFIN_BEGIN
namespace io::detail {

class checkpoint final : public model_source {
public:
    // `path`: the folder, or its config.json.
    static result<std::shared_ptr<const model_source>> open(const std::filesystem::path& path) {
        auto made = std::make_shared<checkpoint>();
        const bool of_config = path.filename() == "config.json";
        const std::filesystem::path folder = of_config ? path.parent_path() : path;
        made->label_ = path.string();
        if (status s = made->config_.read(folder, made->label_); !s) return s.failure();
        if (status s = made->tensors_.open(folder, made->label_, made->config_.is_lingua); !s)
            return s.failure();
        return std::shared_ptr<const model_source>(std::move(made));
    }

    [[nodiscard]] std::string_view architecture() const noexcept override { return config_.type; }
    [[nodiscard]] std::size_t layers() const noexcept override { return config_.layers; }
    [[nodiscard]] const std::string& label() const noexcept override { return label_; }

    [[nodiscard]] result<described_layer> layer(std::size_t index) const override {
        return checkpoint_layer_reader(tensors_.by_name(), config_, index).read();
    }

private:
    std::string label_;
    checkpoint_config config_;
    checkpoint_tensors tensors_;
};

}  // namespace io::detail
TIFFIN_END
