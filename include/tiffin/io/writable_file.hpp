// A file that is open for positional writes, and a new one that gets its name when it is complete.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/open_file.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

TIFFIN_BEGIN
namespace io {

// An open_file that can be written, too.
class writable_file : public open_file {
public:
    // Errors: those of open_file::open, and errc::file where the file may not be written.
    static result<writable_file> open(const std::filesystem::path& path) {
        static_assert(O_RDONLY == 0, "the flags beside O_RDONLY can only then be O_RDWR");
        auto file = open_file::open(path, O_RDWR);
        if (!file) return file.failure();
        return writable_file(*std::move(file));
    }
    writable_file() = default;

    // Locks the file (flock) against other processes and other objects of this one, until this object ends, and its
    // copies in children of fork().
    // Errors: errc::file where it is locked already, or cannot be locked.
    [[nodiscard]] status lock() const {
        while (::flock(descriptor(), LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK)
                return refuse("is open to be written somewhere else; one at a time may");
            if (errno != EINTR) return refuse("the file cannot be locked: " + detail::last_reason());
        }
        return {};
    }
    // Writes `bytes` bytes from `offset` on.
    // Errors: errc::file where the write fails; the first bytes may then be written.
    status write(std::uint64_t offset, const std::byte* from, std::size_t bytes) const {
        for (std::size_t done = 0; done < bytes;) {
            const ::ssize_t put =
                ::pwrite(descriptor(), from + done, bytes - done, static_cast<::off_t>(offset + done));
            if (put > 0)
                done += static_cast<std::size_t>(put);
            else if (put == 0 || errno != EINTR)
                return failure(errc::file, path(), "the ", bytes, " bytes from ", offset,
                               " on cannot be written: ",
                               detail::reason({put == 0 ? EIO : errno, std::generic_category()}), "; ", done,
                               " of them are");
        }
        return {};
    }
    // Truncates the file, or extends it by zeros that take no disk space.
    // Errors: errc::file.
    [[nodiscard]] status resize(std::uint64_t bytes) const {
        while (::ftruncate(descriptor(), static_cast<::off_t>(bytes)) != 0)
            if (errno != EINTR)
                return refuse("the file cannot get " + std::to_string(bytes) +
                              " bytes: " + detail::last_reason());
        return {};
    }
    // Returns when what was written is on the disk (fsync).
    // Errors: errc::file. What is on the disk is then unknown, and a second call may succeed all the same.
    [[nodiscard]] status sync() const {
        while (::fsync(descriptor()) != 0)
            if (errno != EINTR) return refuse("the file cannot be synced: " + detail::last_reason());
        return {};
    }

private:
    explicit writable_file(open_file file) noexcept : open_file(std::move(file)) {}
};

namespace detail {

// Creates an empty file; returns 0 or errno, EEXIST where there is a file.
inline int make_empty(const std::filesystem::path& path) noexcept {
    const int made = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (made < 0) return errno;
    ::close(made);
    return 0;
}

// Returns when the names in a file's folder are on the disk.
// Errors: errc::file.
inline status sync_folder_of(const std::filesystem::path& path) {
    const std::filesystem::path parent = path.parent_path();
    const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = folder < 0 ? errno : 0;
    while (folder >= 0 && (error = ::fsync(folder) == 0 ? 0 : errno) == EINTR) {
    }
    if (folder >= 0) ::close(folder);
    // Some file systems sync names by themselves, and return EINVAL.
    if (error == 0 || error == EINVAL) return {};
    return failure(errc::file, path.string(),
                   "its folder cannot be synced: ", reason({error, std::generic_category()}));
}

// A new file under construction: tiffin.part<n> in the same folder until it is complete, removed again if it never is.
// Unlike unfinished_file it replaces no existing file, and it is on the disk when it gets its name.
class new_file {
public:
    // Errors: errc::file where `path` exists, or nothing can be created there.
    static result<new_file> begin(const std::filesystem::path& path) {
        new_file made;
        made.target_ = path;
        if (status s = made.is_free(); !s) return s.failure();
        int error = EEXIST;
        for (int n = 0; n < 1000 && error == EEXIST; ++n) {
            std::filesystem::path candidate = path.parent_path() / ("tiffin.part" + std::to_string(n));
            error = make_empty(candidate);
            if (error == 0) made.path_ = std::move(candidate);
        }
        if (error != 0) return made.refuse("cannot be made", error);
        auto file = writable_file::open(made.path_);
        if (!file) return file.failure();
        made.file_ = *std::move(file);
        return {std::move(made)};
    }
    new_file(new_file&& other) noexcept { *this = std::move(other); }
    new_file& operator=(new_file&& other) noexcept {
        std::swap(target_, other.target_);
        std::swap(path_, other.path_);
        std::swap(file_, other.file_);
        return *this;
    }
    ~new_file() {
        if (!path_.empty()) ::unlink(path_.c_str());
    }

    // The file to write to; named() makes a failure of it name the final path.
    [[nodiscard]] const writable_file& file() const noexcept { return file_; }
    [[nodiscard]] status named(status s) const {
        if (s) return s;
        return failure(s.failure().code, target_.string(), s.failure().what);
    }
    // Gives the file its name.
    // Errors: errc::file where it cannot be synced, or the name has been taken meanwhile.
    status finish() {
        if (status s = named(file_.sync()); !s) return s;
        int error = ENOSYS;
#if defined(RENAME_NOREPLACE)
        error = ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) == 0
                    ? 0
                    : errno;
#endif
        if (error == ENOSYS || error == EINVAL) {  // not supported by the system, or by the file system
            if (status s = is_free(); !s) return s;
            error = std::rename(path_.c_str(), target_.c_str()) == 0 ? 0 : errno;
        }
        if (error != 0) return refuse("cannot get its name", error);
        path_.clear();
        return sync_folder_of(target_);
    }

private:
    new_file() = default;
    [[nodiscard]] status is_free() const {
        std::error_code error;
        if (std::filesystem::symlink_status(target_, error).type() == std::filesystem::file_type::not_found)
            return {};
        return refuse("cannot be made", error ? error.value() : EEXIST);
    }
    [[nodiscard]] failure refuse(const char* what, int error) const {
        return {
            errc::file, target_.string(), "the file ", what, ": ", reason({error, std::generic_category()})};
    }

    std::filesystem::path target_;  // the final path
    std::filesystem::path path_;    // the temporary path; empty before and after
    writable_file file_;
};

}  // namespace detail
}  // namespace io
TIFFIN_END
