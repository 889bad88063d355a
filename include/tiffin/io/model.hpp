// Model files: the FFN of each layer as a block. Needs the JSON library (target tiffin::io).
#pragma once

#include <tiffin/io/checkpoint.hpp>
#include <tiffin/io/gguf_model.hpp>
#include <tiffin/io/model_source.hpp>
#include <tiffin/io/rwkv_model.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

TIFFIN_BEGIN
namespace io {

// A model: a GGUF file, or several of a split one; a checkpoint of safetensors files with their config.json; the one
// safetensors file of an RWKV model.
//
// The block of a layer is what lies between the norm before the FFN and the residual addition: neither that norm nor a
// norm after the FFN is part of it. Tensors lie in the mapped files, which a described or prepared layer keeps open.
class model {
public:
    // Opens a model: a GGUF file, the first file of a split model with the others beside it, the folder of a
    // checkpoint, or its config.json, or an RWKV model's file, which ends in .safetensors.
    // Errors: those of gguf_file::open and safetensors_file::map; errc::option where the architecture is missing or
    //   unknown; errc::file where files of a model are missing or do not belong together, or an index or a
    //   configuration is no JSON; errc::duplicate_tensor where two files have the same tensor and there is no index.
    // Cost: that of the headers.
    static result<model> open(const std::filesystem::path& path);

    // The file's general.architecture, or model_type.
    [[nodiscard]] std::string_view architecture() const noexcept { return source_->architecture(); }
    // Layers, by index from 0 on.
    [[nodiscard]] std::size_t layers() const noexcept { return source_->layers(); }
    // The file or folder; failures carry it as `where`.
    [[nodiscard]] const std::string& label() const noexcept { return source_->label(); }

    // The block of a layer: its options and tensors.
    // Errors: errc::option for a layer that does not exist, or for an FFN that compositions cannot express (experts
    //   chosen by groups or beside an FFN behind norms of their own, a shared expert behind a gate of its own);
    //   errc::missing_tensor, unused_tensor, shape, dtype, naming the file's tensor.
    [[nodiscard]] result<described_layer> layer(std::size_t index) const {
        if (index >= layers())
            return failure(errc::option, label(), "there is no layer ", index, "; the model has ", layers(),
                           ", from 0 on");
        auto made = source_->layer(index);
        if (!made) return failure(made.failure().code, label(), made.failure().message());
        // Tensors that were made for this layer stay with the files.
        struct kept {
            std::shared_ptr<const void> files, made;
        };
        made->keep = std::make_shared<kept>(kept{source_, std::move(made->keep)});
        return made;
    }

private:
    explicit model(std::shared_ptr<const detail::model_source> source) : source_(std::move(source)) {}

    std::shared_ptr<const detail::model_source> source_;
};

#if TIFFIN_ENGINES_DEFINITIONS
TIFFIN_ENGINES_INLINE result<model> model::open(const std::filesystem::path& path) {
    const bool one_file = path.extension() == ".safetensors";
    auto source = detail::is_checkpoint(path) ? detail::checkpoint::open(path)
                  : one_file                  ? detail::rwkv_model::open(path)
                                              : detail::gguf_model::open(path);
    if (!source) return source.failure();
    return model(*std::move(source));
}
#endif

// Prepares the block of a model's layer; the prepared layer keeps the model open.
// Errors: those of model::layer and load_layer.
//
//     auto model = tiffin::io::model::open("model.gguf");
//     auto layer = tiffin::io::open_layer(*model, 0, tiffin::simd{});
template <class Backend>
result<any_layer> open_layer(const model& from, std::size_t index, const Backend& backend,
                             const prepare_options& how = {.tokens = 0}) {
    const auto described = from.layer(index);
    if (!described) return described.failure();
    auto made = load_layer(*described, backend, how);
    if (made) return made;
    return failure(made.failure().code, from.label(), "layer ", index, ": ", made.failure().message());
}

}  // namespace io
TIFFIN_END
