// libFuzzer target of the GGUF reader. Whatever the bytes, it either refuses them with one line of ASCII or gives
// metadata and tensors that can be touched; and a model found in it, whose table lies in a file, runs.
#include <tiffin/io/gguf.hpp>
#include <tiffin/io/ngram_memory.hpp>
#include <tiffin/io/per_layer_memory.hpp>

#include "found_memory.hpp"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace {

struct own_file {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("gguf_fuzz_" + std::to_string(::getpid()));
    ~own_file() { std::filesystem::remove(path); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // At any alignment that the library may meet: a file begins on a page.
    const std::vector<std::uint8_t> copy(data, data + size);
    static const own_file place;
    tiffin_fuzz::readers of;
    auto file = tiffin::io::gguf_file::read(std::as_bytes(std::span(copy)), place.path.string());
    if (!of.takes(file)) {
        of.end();
        return 0;
    }
    unsigned touched = 0;
    for (const auto& e : file->tensors().entries()) {
        const auto* const bytes = static_cast<const unsigned char*>(e.tensor.data);
        const std::size_t count = bytes_of(e.tensor.type, e.tensor.shape.elements());
        if (count != 0) touched += bytes[0] + bytes[count - 1];
    }
    for (const auto& [key, value] : file->metadata()) {
        touched += static_cast<unsigned>(key.size());
        if (const auto* const all = std::get_if<tiffin::io::gguf_array>(&value)) {
            all->for_texts([&](std::string_view t) { touched += static_cast<unsigned>(t.size()); });
            if (all->type != tiffin::io::gguf_type::string && all->size != 0)
                touched += all->number<double>(0) > all->number<double>(all->size - 1);
        }
    }
    // What finds the parts of a model in it.
    std::vector<tiffin::io::gguf_file> files;
    files.push_back(*std::move(file));
    const auto memory = tiffin::io::find_ngram_memory(files);
    const auto per_layer = tiffin::io::find_per_layer_memory(files, 1);
    if (memory || per_layer)  // the file is written only then: most inputs are of no model
        std::ofstream(place.path, std::ios::binary)
            .write(reinterpret_cast<const char*>(copy.data()), static_cast<std::streamsize>(copy.size()));
    run_found(of, memory);
    if (of.takes(per_layer) && read_table(of, {{per_layer->table}, {}, {}})) of.ran();
    of.end();
    volatile unsigned keep = touched;
    static_cast<void>(keep);
    return 0;
}
