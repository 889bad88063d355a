// Files whose reads are to come from the disk.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

namespace tiffin_bench {

// Gives up the pages of a file that nobody has mapped.
inline void give_up_pages(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
}

}  // namespace tiffin_bench
