// Reads no JSON: nvcc 13 cannot compile nlohmann/json 3.11.2.
#include "layer_files_on_device.hpp"

#include <tiffin/cuda.hpp>
#include <tiffin/io/layer_blocks.hpp>

tiffin::result<tiffin::any_layer> load_layer(const tiffin::io::described_layer& given,
                                             const device_backend& backend,
                                             const tiffin::prepare_options& options) {
    using namespace tiffin;
    switch (backend.format) {
        case dtype::f32: return io::load_layer(given, cuda_from_host<>{}, options);
        case dtype::bf16: return io::load_layer(given, cuda_from_host<bf16>{}, options);
        default:
            return failure(errc::option, "--weights",
                           std::string(name_of(backend.format)) + ": the device keeps F32 or BF16");
    }
}
