// The readers of checkpoints and adapters: a configuration, a zero byte, and a safetensors file, in files of a folder.
#include <tiffin/io/longcat_memory.hpp>
#include <tiffin/io/model.hpp>
#include <tiffin/io/ngram_memory.hpp>
#include <tiffin/io/per_layer_memory.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

namespace {

struct own_folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("checkpoint_fuzz_" + std::to_string(::getpid()));
    own_folder() { std::filesystem::create_directory(path); }
    ~own_folder() { std::filesystem::remove_all(path); }
};

void write(const std::filesystem::path& path, std::string_view text) {
    std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}
void check_told(const auto& found) {
    if (found.ok()) return;
    for (const char c : found.failure().message())
        if (c < 0x20 || c > 0x7E) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const own_folder folder;
    const std::string_view all(reinterpret_cast<const char*>(data), size);
    const std::size_t config = std::min(all.find('\0'), size);
    const std::string_view tensors = all.substr(std::min(config + 1, size));
    const std::filesystem::path checkpoint = folder.path / "model", adapter = folder.path / "adapter";
    for (const auto& [at, name] :
         {std::pair{checkpoint, "model.safetensors"}, std::pair{adapter, "engram_adapters.safetensors"}}) {
        std::filesystem::create_directory(at);
        write(at / "config.json", all.substr(0, config));
        write(at / name, tensors);
    }
    check_told(tiffin::io::find_ngram_memory(checkpoint));
    check_told(tiffin::io::find_ngram_memory(adapter));
    check_told(tiffin::io::find_per_layer_memory(checkpoint, 1));
    check_told(tiffin::io::find_longcat_memory(checkpoint));
    const auto model = tiffin::io::model::open(checkpoint / "model.safetensors");
    check_told(model);
    if (model) check_told(model->layer(0));
    return 0;
}
