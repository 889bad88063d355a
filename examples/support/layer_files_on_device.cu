#include "layer_files_on_device.hpp"

#include <tiffin/cuda.hpp>
#include <tiffin/io/layer_file.hpp>

tiffin::result<tiffin::any_layer> open_layer_on_device(const std::filesystem::path& path,
                                                       tiffin::dtype format) {
    switch (format) {
        case tiffin::dtype::f32: return tiffin::io::open_layer(path, tiffin::cuda_from_host<>{});
        case tiffin::dtype::bf16: return tiffin::io::open_layer(path, tiffin::cuda_from_host<tiffin::bf16>{});
        default:
            return tiffin::failure(tiffin::errc::option, "--weights",
                                   std::string(name_of(format)) + ": the device keeps F32 or BF16");
    }
}
