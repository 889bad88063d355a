// The memory of a published model or adapter that is addressed by the last token ids.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/checkpoint_memory.hpp>
#include <tiffin/io/checkpoint_parts.hpp>
#include <tiffin/io/described_memory.hpp>
#include <tiffin/io/engram_adapter.hpp>
#include <tiffin/io/engram_constants.hpp>
#include <tiffin/io/gguf_memory.hpp>
#include <tiffin/io/gguf_model.hpp>
#include <tiffin/io/json_file.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

struct ngram_memory_options {
    std::optional<std::size_t> layer;  // none: the first that has one
    std::filesystem::path constants;   // a file of engram_constants; empty: there is none
};

// Finds it in the files of a GGUF model, which must outlive its tensors.
// Precondition: there is a file. Errors: errc::option for another architecture, a layer without such a memory, or a key that
//   is missing; errc::missing_tensor, unused_tensor, dtype, shape, size, with the names of keys and tensors and the numbers.
inline result<ngram_memory> find_ngram_memory(const std::vector<gguf_file>& files,
                                              std::optional<std::size_t> layer = {},
                                              engram_constants constants = {}) {
    return detail::gguf_memory_reader(files, layer, std::move(constants)).read();
}

// Finds it in a model: a GGUF file, the first of a split model, or the folder of a checkpoint or of an adapter of
// engram-peft, or its config.json. What is found keeps the files open; its table is not read.
// Errors: as above, and those of opening the files. Cost: that of the headers; norms that are stored less 1, and an adapter's
//   keys, are copied.
// Source: docs/models.md#token-indexed-memories.
inline result<ngram_memory> find_ngram_memory(const std::filesystem::path& path,
                                              const ngram_memory_options& how = {}) {
    engram_constants constants;
    if (!how.constants.empty()) {
        auto read = read_engram_constants(how.constants);
        if (!read) return read.failure();
        constants = *std::move(read);
    }
    // What was made stays with the files it was made from.
    struct kept {
        std::shared_ptr<const void> files, made;
    };
    const auto found = [&](std::shared_ptr<const void> files, result<ngram_memory> memory) {
        if (memory) memory->keep = std::make_shared<kept>(kept{std::move(files), std::move(memory->keep)});
        return memory;
    };
    if (!detail::is_checkpoint(path)) {
        auto opened = open_gguf_files(path);
        if (!opened) return opened.failure();
        const auto files = std::make_shared<const std::vector<gguf_file>>(*std::move(opened));
        return found(files, find_ngram_memory(*files, how.layer, std::move(constants)));
    }
    const std::filesystem::path folder = path.filename() == "config.json" ? path.parent_path() : path;
    const bool is_adapter = detail::is_there(folder / detail::engram_adapter_file);
    auto opened = is_adapter ? detail::checkpoint_parts::open(path, detail::engram_adapter_file)
                             : detail::checkpoint_parts::open(path);
    if (!opened) return opened.failure();
    const std::shared_ptr<detail::checkpoint_parts> parts = *std::move(opened);
    return found(
        parts, is_adapter ? detail::engram_adapter_reader(*parts, how.layer, std::move(constants)).read()
                          : detail::checkpoint_memory_reader(*parts, how.layer, std::move(constants)).read());
}

}  // namespace io
TIFFIN_END
