// The readers of checkpoints and adapters: a configuration, a zero byte, an index of shards or nothing, a zero byte, and up to
// three safetensors files with `mark` between them: the model or its first shard, the second shard, constants. They are files of
// a folder.
#include <tiffin/io/longcat_memory.hpp>
#include <tiffin/io/model.hpp>
#include <tiffin/io/ngram_memory.hpp>
#include <tiffin/io/per_layer_memory.hpp>

#include "found_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view mark = "=next file=";

struct own_folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("checkpoint_fuzz_" + std::to_string(::getpid()));
    own_folder() { std::filesystem::create_directory(path); }
    ~own_folder() { std::filesystem::remove_all(path); }
};

void write(const std::filesystem::path& path, std::string_view text) {
    std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

// What stands before `end`; it and `end` are taken off.
std::string_view take(std::string_view& all, std::string_view end) {
    const std::size_t at = std::min(all.find(end), all.size());
    const std::string_view taken = all.substr(0, at);
    all.remove_prefix(std::min(at + end.size(), all.size()));
    return taken;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const own_folder folder;
    std::string_view all(reinterpret_cast<const char*>(data), size);
    constexpr std::string_view zero("\0", 1);
    const std::string_view config = take(all, zero), index = take(all, zero), first = take(all, mark),
                           second = take(all, mark);
    const std::filesystem::path checkpoint = folder.path / "model", adapter = folder.path / "adapter",
                                told = folder.path / "constants",
                                map = checkpoint / "model.safetensors.index.json";
    for (const std::filesystem::path& at : {checkpoint, adapter}) {
        std::filesystem::create_directory(at);
        write(at / "config.json", config);
    }
    write(adapter / "engram_adapters.safetensors", first);
    write(checkpoint / "model.safetensors", first);
    write(checkpoint / "second.safetensors", second);
    std::filesystem::remove(map);
    if (!index.empty()) write(map, index);
    write(told, all);
    tiffin::io::ngram_memory_options how;
    if (!all.empty()) how.constants = told;

    tiffin_fuzz::readers of;
    run_found(of, tiffin::io::find_ngram_memory(checkpoint, how));
    run_found(of, tiffin::io::find_ngram_memory(adapter, how));
    const auto per_layer = tiffin::io::find_per_layer_memory(checkpoint, 1);
    if (of.takes(per_layer) && read_table(of, {{per_layer->table}, {}, {}})) of.ran();
    const auto longcat = tiffin::io::find_longcat_memory(checkpoint);
    if (of.takes(longcat))
        for (const tiffin::io::memory_table& table : longcat->tables)
            if (read_table(of, table)) of.ran();
    const auto model = tiffin::io::model::open(checkpoint / "model.safetensors");
    if (of.takes(model) && of.takes(model->layer(0))) of.ran();
    of.end();
    return 0;
}
