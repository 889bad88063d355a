// A file's bytes where the system keeps them: read when they are touched, given up when memory is short.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/safetensors_format.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#if !defined(__unix__) && !defined(__APPLE__)
#    error "tiffin: io/mapped_file.hpp needs mmap, which POSIX systems have"
#endif
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

TIFFIN_BEGIN
namespace io {

// A regular file mapped to be read. Bytes live as long as the object, and survive its being moved.
// Precondition: nobody shortens the file meanwhile; reading beyond its new end would stop the program.
//   Renaming another over it is fine.
// Cost: address space; pages are read as they are touched.
class mapped_file {
public:
    // Errors: errc::file where the file is missing, unreadable or not a regular file.
    static result<mapped_file> open(const std::filesystem::path& path) {
        const result<std::uint64_t> size = detail::regular_file_size(path);
        if (!size) return size.failure();
        const auto refuse = [&](const char* what) {
            return detail::file_failure(errc::file, path.string(), what + detail::last_reason());
        };
        mapped_file file;
        const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (descriptor < 0) return refuse("the file cannot be opened: ");
        void* const at = *size == 0 ? nullptr : ::mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        const int why = errno;
        ::close(descriptor);
        if (at == MAP_FAILED) {
            errno = why;
            return refuse("the file cannot be mapped: ");
        }
        file.bytes_ = {static_cast<const std::byte*>(at), static_cast<std::size_t>(*size)};
        return file;
    }
    mapped_file() = default;
    mapped_file(mapped_file&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
    mapped_file& operator=(mapped_file&& other) noexcept {
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~mapped_file() {
        if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    }

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

private:
    std::span<const std::byte> bytes_;
};

}  // namespace io
TIFFIN_END
