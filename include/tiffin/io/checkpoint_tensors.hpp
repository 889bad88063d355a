// The tensors of a checkpoint by name, over all its files.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/json_file.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/quoted.hpp>
#include <tiffin/table/table_location.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

// Whether a path names a checkpoint, by its folder or its config.json, and no GGUF file.
inline bool is_checkpoint(const std::filesystem::path& path) {
    std::error_code ignored;
    return path.filename() == "config.json" || std::filesystem::is_directory(path, ignored);
}

// An index, where present, determines the file of each tensor, whatever other files hold; without one, a tensor that
// two files have is an error.
class checkpoint_tensors {
public:
    struct entry {
        const tensor_view* tensor = nullptr;
        status wrong;  // why it cannot be read: fails only the layers that need it
    };
    using tensors_by_name = std::map<std::string, entry, std::less<>>;

    // Maps the files of a folder. Errors, with `label` as `where`: errc::file, errc::duplicate_tensor, and those of
    // safetensors_file::map.
    // `usual`: the file where there is no index.
    status open(const std::filesystem::path& folder, const std::string& label, bool is_lingua,
                const std::string& usual = "model.safetensors") {
        const auto has = [&](const char* name) { return is_there(folder / name); };
        if (usual == "model.safetensors" && has(index_name)) return open_indexed(folder, label);
        std::set<std::string> names;
        for (const char* const name : {"model.safetensors", "consolidated.safetensors"})
            if (is_lingua && has(name)) names.insert(name);
        if (is_lingua && names.empty() && has("consolidated.pth"))
            return failure(errc::file, label,
                           "has consolidated.pth, which is Python's; save its tensors, and those of "
                           "consolidated_stem.pth, as .safetensors beside it");
        if (names.empty()) names.insert(is_lingua ? "consolidated.safetensors" : usual);
        // STEM's tables.
        if (is_lingua && has("consolidated_stem.safetensors")) names.insert("consolidated_stem.safetensors");
        if (status s = open_files(folder, names); !s) return s;
        std::map<std::string_view, std::string_view> file_of;
        for (const auto& [file, tensors] : files_)
            for (const auto& [name, found] : tensors_of(tensors)) {
                if (const auto [first, fresh] = file_of.emplace(name, file); !fresh)
                    return failure(errc::duplicate_tensor, label, "tensor ", tiffin::detail::in_quotes(name),
                                   " is given twice, in ", first->second, " and in ", file);
                by_name_.emplace(name, found);
            }
        return {};
    }

    [[nodiscard]] const tensors_by_name& by_name() const noexcept { return by_name_; }
    // Where a tensor of by_name() lies.
    [[nodiscard]] table_location place_of(const tensor_view& tensor) const {
        const auto* const at = static_cast<const std::byte*>(tensor.data);
        table_location made{{}, 0, {tensor.shape[0], tensor.shape.last(), tensor.type}};
        for (const auto& [name, file] : files_) {
            const std::span<const std::byte> bytes = file.mapping().bytes();
            if (std::less<>()(at, bytes.data()) || !std::less<>()(at, bytes.data() + bytes.size())) continue;
            made.path = file.label();
            made.offset = static_cast<std::uint64_t>(at - bytes.data());
        }
        return made;
    }

private:
    static constexpr const char* index_name = "model.safetensors.index.json";

    status open_files(const std::filesystem::path& folder, const std::set<std::string>& names) {
        for (const std::string& name : names) {
            auto opened = safetensors_file::map(folder / name, unread_tensors::listed);
            if (!opened) return opened.failure();
            files_.emplace_back(name, *std::move(opened));
        }
        return {};
    }
    static std::vector<std::pair<std::string_view, entry>> tensors_of(const safetensors_file& file) {
        std::vector<std::pair<std::string_view, entry>> all;
        for (const weights::entry& e : file.tensors().entries()) all.push_back({e.name, {&e.tensor, {}}});
        for (const unread_safetensor& t : file.unread())
            all.push_back({t.name, {nullptr, failure(errc::dtype, t.name, t.reason())}});
        return all;
    }

    status open_indexed(const std::filesystem::path& folder, const std::string& label) {
        const auto index = read_json(folder / index_name, label);
        if (!index) return index.failure();
        const auto refuse = [&](const auto&... what) {
            return failure(errc::file, label, index_name, what...);
        };
        const auto map = index->value.find("weight_map");
        if (map == index->value.end() || !map->is_object()) return refuse(" has no weight_map");
        if (!index->twice.empty()) return refuse(" has ", tiffin::detail::in_quotes(index->twice), " twice");
        std::map<std::string_view, std::string> file_of;
        std::set<std::string> names;
        for (const auto& [tensor, file] : map->items()) {
            const std::filesystem::path path(file.is_string() ? file.template get<std::string>() : "");
            // Only files in this folder or below it. A symbolic link may lead anywhere.
            const bool leaves = std::find(path.begin(), path.end(), "..") != path.end();
            if (!path.has_filename() || path.is_absolute() || leaves ||
                path.native().find('\0') != std::string::npos)
                return refuse(" has ", tiffin::detail::in_quotes(tensor),
                              " in no file of its folder: ", tiffin::detail::printable(file.dump()));
            const auto [at, fresh] = names.insert(path.lexically_normal().string());
            file_of.emplace(tensor, *at);
        }
        if (names.empty()) return refuse(" has a weight_map without tensors");
        if (status s = open_files(folder, names); !s) return s;
        for (const auto& [file, tensors] : files_)
            for (const auto& [name, found] : tensors_of(tensors)) {
                const auto told = file_of.find(name);
                if (told == file_of.end())
                    by_name_.emplace(name, entry{nullptr, failure(errc::file, name, "is in ", file, ", but ",
                                                                  index_name, " does not name it")});
                else if (told->second == file)
                    by_name_.emplace(name, found);
            }
        for (const auto& [name, file] : file_of)
            if (!by_name_.contains(name))
                by_name_.emplace(name, entry{nullptr, failure(errc::missing_tensor, name, "missing in ", file,
                                                              ", where ", index_name, " has it")});
        return {};
    }

    std::vector<std::pair<std::string, safetensors_file>> files_;  // by their paths in the folder
    tensors_by_name by_name_;
};

}  // namespace io::detail
TIFFIN_END
