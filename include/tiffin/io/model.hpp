// Model files: the FFN of each layer as a block.
#pragma once

#include <tiffin/io/gguf.hpp>
#include <tiffin/io/gguf_layers.hpp>

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
namespace io {

// A model in a GGUF file, or in several of a split one.
//
// Its layers' blocks are those between the norm before the FFN and the residual: neither these norms nor a norm
// after the FFN are part of them. Tensors lie in the mapped files; a layer that was described or prepared keeps them.
class model {
public:
    // Opens a model: a GGUF file; of a split model the first of its files, the others being beside it.
    // Errors: those of gguf_file::open; errc::option where the architecture is missing or none that is known;
    //   errc::file where files of a split model do not belong together.
    // Cost: that of the headers.
    static result<model> open(const std::filesystem::path& path) {
        auto files = std::make_shared<std::vector<gguf_file>>();
        if (status s = open_all(path, *files); !s) return s.failure();
        const gguf_file& first = (*files)[0];
        const auto name = first.find<std::string_view>("general.architecture");
        if (!name)
            return failure(errc::option, first.label(), "general.architecture is missing from the metadata");
        std::string known;
        for (const detail::gguf_architecture& a : detail::gguf_architectures) {
            if (a.name == *name) return with_architecture(a, std::move(files));
            known.append(known.empty() ? "" : ", ").append(a.name);
        }
        return failure(errc::option, first.label(), "the architecture is ", tiffin::detail::in_quotes(*name),
                       "; known are ", known);
    }

    [[nodiscard]] std::string_view architecture() const noexcept { return architecture_->name; }
    // Layers, by index from 0 on.
    [[nodiscard]] std::size_t layers() const noexcept { return layers_; }
    // The files, the first of which has the metadata.
    [[nodiscard]] const std::vector<gguf_file>& files() const noexcept { return *files_; }

    // The block of a layer: its options and tensors.
    // Errors: errc::option for a layer that there is not, or for what the grammar does not say (a gate that keeps
    //   its largest activations alone, experts chosen by groups, a shared expert behind a gate of its own);
    //   errc::missing_tensor, unused_tensor, shape, dtype, naming the file's tensor.
    [[nodiscard]] result<described_layer> layer(std::size_t index) const {
        if (index >= layers_)
            return failure(errc::option, (*files_)[0].label(), "there is no layer ", index,
                           "; the model has ", layers_, ", from 0 on");
        auto made = detail::gguf_layer_reader(*files_, *architecture_, index).read();
        if (!made) return failure(made.failure().code, (*files_)[0].label(), made.failure().message());
        made->keep = files_;
        return made;
    }

private:
    model() = default;

    static result<model> with_architecture(const detail::gguf_architecture& a,
                                           std::shared_ptr<const std::vector<gguf_file>> files) {
        const auto layers = (*files)[0].find<std::uint64_t>(std::string(a.name) + ".block_count");
        if (!layers || *layers > (1u << 20))
            return failure(errc::option, (*files)[0].label(), a.name,
                           ".block_count is missing, or no number of layers");
        model made;
        made.architecture_ = &a;
        made.layers_ = static_cast<std::size_t>(*layers);
        made.files_ = std::move(files);
        return {std::move(made)};
    }

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

    const detail::gguf_architecture* architecture_ = nullptr;
    std::size_t layers_ = 0;
    std::shared_ptr<const std::vector<gguf_file>> files_;
};

// Prepares the block of a layer of a model, which the layer keeps open.
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
    return failure(made.failure().code, from.files()[0].label(), "layer ", index, ": ",
                   made.failure().message());
}

}  // namespace io
TIFFIN_END
