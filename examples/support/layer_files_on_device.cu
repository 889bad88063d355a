// Reads no JSON: nvcc 13 cannot compile nlohmann/json 3.11.2.
#include "layer_files_on_device.hpp"

#include <tiffin/cuda.hpp>

#include "blocks_on_device.hpp"

#include <string>
#include <utility>

namespace {

template <class Backend>
tiffin::result<tiffin::any_layer> load(const tiffin::io::described_layer& given, const Backend& backend,
                                       const tiffin::prepare_options& options) {
    const auto text = tiffin::io::composition_of(given);
    if (!text) return text.failure();
    tiffin::result<tiffin::any_layer> layer = tiffin::any_layer();
    const tiffin::status found = with_block_on_device(*text, [&](const auto& block) {
        auto made = tiffin::try_prepare(block, given.tensors, backend, options);
        if (made)
            layer = tiffin::any_layer(*std::move(made), given.keep);
        else
            layer = made.failure();
    });
    if (!found) return found.failure();
    return layer;
}

}  // namespace

tiffin::result<tiffin::any_layer> load_layer(const tiffin::io::described_layer& given,
                                             const device_backend& backend,
                                             const tiffin::prepare_options& options) {
    using namespace tiffin;
    switch (backend.format) {
        case dtype::f32: return load(given, cuda_from_host<>{}, options);
        case dtype::bf16: return load(given, cuda_from_host<bf16>{}, options);
        default:
            return failure(errc::option, "--weights",
                           std::string(name_of(backend.format)) + ": the device keeps F32 or BF16");
    }
}
