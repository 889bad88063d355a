// What kind of model a path names.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/engram_adapter.hpp>
#include <tiffin/io/gguf.hpp>
#include <tiffin/io/json_file.hpp>
#include <tiffin/io/text_config.hpp>

#include <filesystem>
#include <string>
#include <string_view>

TIFFIN_BEGIN
namespace io {

// general.architecture of a GGUF file; model_type of a checkpoint, that of the text model inside where there is one;
// "engram-peft" of an adapter. Empty where the file does not say.
// Errors: those of gguf_file::open, errc::file for a config.json that cannot be read. Cost: that of the header.
inline result<std::string> model_architecture(const std::filesystem::path& path) {
    if (!detail::is_checkpoint(path)) {
        const auto file = gguf_file::open(path);
        if (!file) return file.failure();
        return std::string(file->find<std::string_view>("general.architecture").value_or(""));
    }
    const std::filesystem::path folder = path.filename() == "config.json" ? path.parent_path() : path;
    if (detail::is_there(folder / detail::engram_adapter_file)) return std::string("engram-peft");
    const auto config = detail::read_json(folder / "config.json", path.string());
    if (!config) return config.failure();
    return detail::text_config_of(config->value).type;
}

}  // namespace io
TIFFIN_END
