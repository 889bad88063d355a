// A memory-mapped file: pages are read when they are touched, and given up when memory is short.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/open_file.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

#include <sys/mman.h>

TIFFIN_BEGIN
namespace io {

// A regular file mapped for reading. Its bytes live as long as the object, also when it is moved.
// Precondition: the file is not shortened meanwhile; a read beyond its new end would stop the program (SIGBUS).
//   Renaming another file over it is fine.
// Cost: address space; pages are read as they are touched.
class file_mapping {
public:
    // Errors: errc::file where the file is missing, unreadable or not a regular file.
    static result<file_mapping> open(const std::filesystem::path& path) {
        auto opened = open_file::open(path);
        if (!opened) return opened.failure();
        file_mapping mapping;
        mapping.file_ = *std::move(opened);
        const auto size = mapping.file_.size();
        if (!size) return size.failure();
        if (*size == 0) return {std::move(mapping)};
        void* const at = ::mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, mapping.file_.descriptor(), 0);
        if (at == MAP_FAILED)
            return mapping.file_.refuse("the file cannot be mapped: " + detail::last_reason());
        mapping.bytes_ = {static_cast<const std::byte*>(at), static_cast<std::size_t>(*size)};
        return {std::move(mapping)};
    }
    file_mapping() = default;
    file_mapping(file_mapping&& other) noexcept { *this = std::move(other); }
    file_mapping& operator=(file_mapping&& other) noexcept {
        std::swap(file_, other.file_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~file_mapping() {
        if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    }

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    [[nodiscard]] const open_file& file() const noexcept { return file_; }

private:
    open_file file_;
    std::span<const std::byte> bytes_;
};

}  // namespace io
TIFFIN_END
