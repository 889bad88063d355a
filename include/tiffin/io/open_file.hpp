// A file that is open for positional reads.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/safetensors_format.hpp>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#if !defined(__unix__) && !defined(__APPLE__)
#    error "tiffin: io/open_file.hpp needs open and fstat, which POSIX systems have"
#endif
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

TIFFIN_BEGIN
namespace io {

// A regular file, open until the object ends. Renaming another file over it does not affect it.
class open_file {
public:
    // `flags` beside O_RDONLY, such as O_DIRECT.
    // Errors: errc::file where the file is missing, unreadable or not a regular file.
    static result<open_file> open(const std::filesystem::path& path, int flags = 0) {
        const result<std::uint64_t> size = detail::regular_file_size(path);
        if (!size) return size.failure();
        open_file file;
        file.path_ = path.string();
        file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
        if (file.descriptor_ < 0) return file.refuse("the file cannot be opened: " + detail::last_reason());
        return {std::move(file)};
    }
    open_file() = default;
    open_file(open_file&& other) noexcept { *this = std::move(other); }
    open_file& operator=(open_file&& other) noexcept {
        std::swap(path_, other.path_);
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    ~open_file() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }

    [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    // Errors: errc::file where fstat fails.
    [[nodiscard]] result<std::uint64_t> size() const {
        struct ::stat told {};
        if (::fstat(descriptor_, &told) != 0)
            return refuse("the file's size cannot be read: " + detail::last_reason());
        return static_cast<std::uint64_t>(told.st_size);
    }
    // Checks that the file (still) has its first `bytes` bytes.
    // Errors: errc::file where they are not.
    [[nodiscard]] status check_size(std::uint64_t bytes) const {
        const auto has = size();
        if (!has) return has.failure();
        if (*has >= bytes) return {};
        return refuse("the file has " + std::to_string(*has) + " bytes; what is read of it ends at byte " +
                      std::to_string(bytes));
    }
    // Reads `bytes` bytes from `offset` on, of which the file must have the first `needed`.
    // Errors: errc::file where the system cannot read them or the file ends before them.
    status read(std::uint64_t offset, std::byte* to, std::size_t bytes, std::size_t needed) const {
        for (std::size_t done = 0; done < needed;) {
            const ::ssize_t got =
                ::pread(descriptor_, to + done, bytes - done, static_cast<::off_t>(offset + done));
            if (got > 0)
                done += static_cast<std::size_t>(got);
            else if (got == 0 || errno != EINTR)
                return cannot_read(offset, needed, got == 0 ? 0 : errno);
        }
        return {};
    }
    // The failure of a read of `bytes` bytes from `offset` on: the file ends before them, or else `error` (an errno).
    [[nodiscard]] failure cannot_read(std::uint64_t offset, std::size_t bytes, int error) const {
        const std::string asked =
            "the " + std::to_string(bytes) + " bytes from " + std::to_string(offset) + " on ";
        const auto has = size();
        if (has.ok() && (error == 0 || *has < offset + bytes))
            return refuse(asked + "cannot be read: the file ends at byte " + std::to_string(*has));
        return refuse(asked + "cannot be read: " + detail::reason({error, std::generic_category()}));
    }
    // Reads bytes that are in the page cache (RWF_NOWAIT). Otherwise, or without system support, returns false and
    // leaves `to` unspecified. The system may begin to fetch missing pages.
    [[nodiscard]] bool read_cached([[maybe_unused]] std::uint64_t offset, [[maybe_unused]] std::byte* to,
                                   [[maybe_unused]] std::size_t bytes) const noexcept {
#if defined(RWF_NOWAIT)
        const ::iovec where{to, bytes};
        return ::preadv2(descriptor_, &where, 1, static_cast<::off_t>(offset), RWF_NOWAIT) ==
               static_cast<::ssize_t>(bytes);
#else
        return false;
#endif
    }
    // Announces a read, which the system begins to fetch (POSIX_FADV_WILLNEED). Advice only.
    void will_read([[maybe_unused]] std::uint64_t offset, [[maybe_unused]] std::size_t bytes) const noexcept {
#if defined(POSIX_FADV_WILLNEED)
        static_cast<void>(::posix_fadvise(descriptor_, static_cast<::off_t>(offset),
                                          static_cast<::off_t>(bytes), POSIX_FADV_WILLNEED));
#endif
    }
    // Turns readahead off (POSIX_FADV_RANDOM). Advice only.
    void will_read_at_random() const noexcept {
#if defined(POSIX_FADV_RANDOM)
        static_cast<void>(::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM));
#endif
    }
    [[nodiscard]] failure refuse(std::string what) const {
        return failure(errc::file, path_, std::move(what));
    }

private:
    std::string path_;
    int descriptor_ = -1;
};

}  // namespace io
TIFFIN_END
