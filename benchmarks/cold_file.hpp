// Files whose reads are to come from the disk, and the text of what was measured of them.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace tiffin_bench {

// Gives up the pages of a file that nobody has mapped.
inline void give_up_pages(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
}

// "median (lower to upper quartile)".
inline std::string quartiles_text(std::vector<double> values, int digits) {
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    char text[80];
    std::snprintf(text, sizeof text, "%.*f (%.*f to %.*f)", digits, values[n / 2], digits, values[n / 4],
                  digits, values[n * 3 / 4]);
    return text;
}

}  // namespace tiffin_bench
