// The destination of an output: a path, resolved and checked before anything is opened.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/open_file.hpp>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#    include <sys/vfs.h>
#endif

TIFFIN_BEGIN
namespace io {

// A regular file, existing or not, that a new one will replace; or a stream, which is written to: a pipe, a terminal or
// another character device, or a descriptor of this process (/dev/stdout, /dev/fd/N).
//
// Symbolic links are followed: the link stays, and its target is created or replaced. What a descriptor refers to is
// never replaced, whatever it is: other processes may write to it, too.
struct output_place {
    std::filesystem::path target;  // with links resolved; a stream's path where it has one
    int descriptor = -1;           // the stream's, in this process; -1: none
    bool is_stream = false;
    bool is_there = false;
    ::mode_t mode = 0;  // of an existing regular file

    // Errors: errc::file where the path cannot be reached, is neither of these (a directory, a socket, a block device,
    //   a descriptor of another process), or may not be written. Nothing is opened, made or changed.
    static result<output_place> of(const std::filesystem::path& path);

    // Whether two outputs are the same file, by any of its names, existing or not.
    [[nodiscard]] bool is_same(const output_place& other) const;
    // The folder of the target.
    [[nodiscard]] std::filesystem::path folder() const {
        const std::filesystem::path parent = target.parent_path();
        return parent.empty() ? "." : parent;
    }

private:
    static failure refuse(const std::filesystem::path& path, std::string what) {
        return failure(errc::file, path.string(), std::move(what));
    }
    bool about(struct ::stat& told) const {
        return (descriptor >= 0 ? ::fstat(descriptor, &told) : ::stat(target.c_str(), &told)) == 0;
    }
    result<output_place> with_kind(const std::filesystem::path& path, ::mode_t of_file);
    // Links in /proc look like paths but are none: the file may have been renamed or deleted by now.
    static bool lies_in_proc([[maybe_unused]] const std::filesystem::path& link) {
#if defined(__linux__)
        constexpr auto proc = 0x9fa0;  // PROC_SUPER_MAGIC
        struct ::statfs told {};
        const std::filesystem::path parent = link.parent_path();
        return ::statfs(parent.empty() ? "." : parent.c_str(), &told) == 0 && told.f_type == proc;
#else
        return false;
#endif
    }
    result<output_place> with_descriptor(const std::filesystem::path& path);
};

#if TIFFIN_ENGINES_DEFINITIONS
TIFFIN_ENGINES_INLINE result<output_place> output_place::of(const std::filesystem::path& path) {
    constexpr int most_links = 40;  // the system's limit
    output_place place;
    place.target = path;
    if (!path.has_filename()) return refuse(path, "names no file");
    for (int links = 0;; ++links) {
        struct ::stat told {};
        if (::lstat(place.target.c_str(), &told) != 0) {
            if (errno == ENOENT) return {std::move(place)};
            return refuse(
                path, (errno == ENOTDIR ? "the file cannot be written: " : "the file cannot be reached: ") +
                          detail::last_reason());
        }
        if (!S_ISLNK(told.st_mode)) return place.with_kind(path, told.st_mode);
        if (lies_in_proc(place.target)) return place.with_descriptor(path);
        std::error_code error;
        const std::filesystem::path next = std::filesystem::read_symlink(place.target, error);
        if (!error && links == most_links)
            error = std::make_error_code(std::errc::too_many_symbolic_link_levels);
        if (error) return refuse(path, "the file cannot be reached: " + detail::reason(error));
        // operator/ drops the parent where `next` is absolute.
        place.target = place.target.parent_path() / next;
    }
}

TIFFIN_ENGINES_INLINE bool output_place::is_same(const output_place& other) const {
    std::error_code error;
    if (descriptor >= 0 || other.descriptor >= 0 || (is_there && other.is_there)) {
        struct ::stat a {
        }, b{};
        return about(a) && other.about(b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    }
    return is_there == other.is_there && target.filename() == other.target.filename() &&
           std::filesystem::equivalent(folder(), other.folder(), error);
}

TIFFIN_ENGINES_INLINE result<output_place> output_place::with_kind(const std::filesystem::path& path,
                                                                   ::mode_t of_file) {
    is_there = true;
    mode = of_file & 07777;
    is_stream = S_ISFIFO(of_file) || S_ISCHR(of_file);
    if (S_ISDIR(of_file)) return refuse(path, "this is a directory; it cannot be written");
    if (!is_stream && !S_ISREG(of_file))
        return refuse(path, "this is neither a regular file nor a stream of bytes; it is not written");
    // Checked here, as renaming would replace a write-protected file.
    if (::faccessat(AT_FDCWD, target.c_str(), W_OK, AT_EACCESS) != 0)
        return refuse(path, "the file cannot be written: " + detail::last_reason());
    return {std::move(*this)};
}

TIFFIN_ENGINES_INLINE result<output_place> output_place::with_descriptor(const std::filesystem::path& path) {
    std::error_code error;
    const std::string self = std::filesystem::canonical("/proc/self", error).string() + "/";
    const std::filesystem::path parent = std::filesystem::canonical(folder(), error);
    const std::string name = target.filename().string();
    const bool own = !error && parent.string().starts_with(self) && parent.filename() == "fd";
    if (!own || std::from_chars(name.data(), name.data() + name.size(), descriptor).ec != std::errc{})
        return refuse(path,
                      "this is a link to what a process has open; only descriptors of this one are "
                      "written to");
    const int flags = ::fcntl(descriptor, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
        return refuse(path, "the file cannot be written: descriptor " + name + " is not open to be written");
    is_stream = true;
    is_there = true;
    return {std::move(*this)};
}
#endif

}  // namespace io
TIFFIN_END
