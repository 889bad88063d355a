// Refusing to write over a file that is read, or written already.
#pragma once

#include <tiffin/io/output_place.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

// What is wrong where OUTPUT, or what `written` calls it, is the file that is read as `name` (LAYER, INPUT), in
// whatever spelling or through links; else nothing.
inline std::string overwritten(const std::string& name, const std::string& read, const std::string& output,
                               const std::string& written = "OUTPUT") {
    std::error_code missing;  // a file that is not there is not written over
    if (!std::filesystem::equivalent(read, output, missing)) return "";
    return written + " " + output + " is the same file as " + name + " " + read +
           ", and would be written over it";
}

// The files that a model lies in: its own, those of the same split, or those of a checkpoint's folder that are read.
inline std::vector<std::string> files_of_model(const std::string& model) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    const fs::path path = model;
    std::vector<std::string> all{model};
    const bool folder_given = fs::is_directory(path, ignored);
    const bool checkpoint = folder_given || path.filename() == "config.json";
    const bool split = path.filename().string().find("-of-") != std::string::npos;
    if (!checkpoint && !split) return all;
    const fs::path folder = folder_given ? path : path.parent_path();
    std::ifstream index_file(folder / "model.safetensors.index.json", std::ios::binary);
    const std::string index{std::istreambuf_iterator<char>(index_file), {}};
    // An index may name files in folders below.
    const fs::path root = folder.empty() ? fs::path(".") : folder;
    for (const auto& entry : fs::recursive_directory_iterator(root, ignored)) {
        const std::string name = entry.path().lexically_relative(root).string();
        const bool read = split ? name.ends_with(".gguf")
                                : name.ends_with(".json") || name == "model.safetensors" ||
                                      name.starts_with("consolidated") ||
                                      index.find('"' + name + '"') != std::string::npos;
        if (read) all.push_back(entry.path().string());
    }
    return all;
}

// overwritten() of all files of a model, which is read as `name`.
inline std::string overwrites_model(const std::string& name, const std::string& model,
                                    const std::string& output, const std::string& written = "OUTPUT") {
    for (const std::string& file : files_of_model(model))
        if (std::string wrong = overwritten(name, file, output, written); !wrong.empty()) return wrong;
    return "";
}

// What is wrong where two outputs are one file, in whatever spelling, through links, there or not yet; else nothing.
inline std::string written_twice(const std::string& name, const std::string& path,
                                 const std::string& other_name, const std::string& other_path) {
    const auto place = tiffin::io::output_place::of(path), other = tiffin::io::output_place::of(other_path);
    for (const auto* each : {&place, &other})
        if (!*each) return each->failure().message();
    if (!place->is_same(*other)) return "";
    return name + " " + path + " and " + other_name + " " + other_path + " are one file";
}
