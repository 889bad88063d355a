// Layer files: one block in one safetensors file. Needs the JSON library (target tiffin::io).
#pragma once

#include <tiffin/io/described_layer.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/quoted.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

TIFFIN_BEGIN
namespace io {

// Prepares the block of a layer file that was read already.
// Errors: errc::option for an unknown or missing block or option, and those of prepare(). `where` is
//   the key or tensor.
// Cost: that of prepare(); the layer shares the file's memory.
// Source: docs/layer_files.md.
template <class Backend>
result<any_layer> load_layer(std::shared_ptr<const safetensors_file> file, const Backend& backend) {
    return load_layer({file->metadata(), file->tensors(), file}, backend);
}

// Maps a layer file and prepares its block: for files whose block is known only at run time. What the backend reads in
// place (see prepare()), mainly tables, stays in the file: only the table rows that calls use are read.
// `composition`, where given, is the block's composition in place of the file's metadata: see compose().
// Precondition: that of file_mapping, as long as the layer lives.
// Errors: those of safetensors_file::map and of load_layer, with the file's path before the rest.
//
//     auto layer = tiffin::io::open_layer("layer.safetensors", tiffin::simd{});
template <class Backend>
result<any_layer> open_layer(const std::filesystem::path& path, const Backend& backend,
                             const std::string& composition = {}) {
    auto file = safetensors_file::map(path);
    if (!file) return file.failure();
    auto shared = std::make_shared<const safetensors_file>(*std::move(file));
    described_layer described{shared->metadata(), shared->tensors(), shared};
    if (!composition.empty()) described.options = {{"composition", composition}};
    auto loaded = load_layer(described, backend);
    if (loaded) return loaded;
    // `where` is truncated here: an overlong tensor name would leave no room for the reason.
    const failure& f = loaded.failure();
    const failure inside{f.code, tiffin::detail::printable(f.where, 512), f.what};
    return failure(f.code, shared->label(), inside.message());
}

}  // namespace io
TIFFIN_END
