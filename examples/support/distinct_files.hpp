// Refusing to write over a file that is read.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

// What is wrong where OUTPUT, or what `written` calls it, is the file that is read as `name` (LAYER, INPUT), in
// whatever spelling or through links; else nothing.
inline std::string overwritten(const std::string& name, const std::string& read, const std::string& output,
                               const std::string& written = "OUTPUT") {
    std::error_code missing;  // a file that is not there is not written over
    if (!std::filesystem::equivalent(read, output, missing)) return "";
    return written + " " + output + " is the same file as " + name + " " + read +
           ", and would be written over it";
}
