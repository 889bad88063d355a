// A file that gets its name, or replaces an existing file, only when it is complete.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/output_place.hpp>
#include <tiffin/io/safetensors_format.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

TIFFIN_BEGIN
namespace io {

// An output under construction, removed again unless it has been finished.
//
// A regular file is created in the destination's folder and renamed over an existing one, whose mode bits it has from
// the first byte on, so that private data stays private. Until then it has no name where the file system supports that
// (O_TMPFILE), so that nothing is left however the process ends; else its name is tiffin.part<n>. A stream (see
// output_place) is written to directly, and what has been written stays.
class unfinished_file {
public:
    // Begins the output at `path`. Errors: errc::file: those of output_place::of, and where the folder cannot be
    // written.
    static result<unfinished_file> begin(const std::filesystem::path& path);

    unfinished_file(unfinished_file&& other) noexcept { *this = std::move(other); }
    unfinished_file& operator=(unfinished_file&& other) noexcept {
        std::swap(label_, other.label_);
        std::swap(place_, other.place_);
        std::swap(path_, other.path_);
        std::swap(stream_, other.stream_);
        return *this;
    }
    ~unfinished_file() {
        if (!path_.empty()) ::unlink(path_.c_str());
    }

    // The path as it was given; failures carry it as `where`.
    [[nodiscard]] const std::string& label() const noexcept { return label_; }
    [[nodiscard]] const output_place& place() const noexcept { return place_; }

    // Appends bytes; returns false where the system refuses.
    bool write(const void* data, std::size_t n) {
        if (!stream_ && !open_stream()) return false;
        return std::fwrite(data, 1, n, stream_.get()) == n;
    }
    // Writes all buffered bytes. Errors: errc::file where the last of them cannot be written.
    status flush();
    // Gives the file its name. Precondition: flush() has succeeded.
    // Errors: errc::file where its name cannot be written.
    status finish();

    // The failure of the system call that has just failed (errno).
    [[nodiscard]] failure cannot_write() const {
        return refuse("the file cannot be written: " + detail::last_reason());
    }

private:
    unfinished_file() = default;
    [[nodiscard]] failure refuse(std::string what) const { return {errc::file, label_, std::move(what)}; }
    [[nodiscard]] failure cannot_rename() const {
        return refuse("the file cannot be renamed: " + detail::last_reason());
    }

    // Sets path_ to the first tiffin.part<n> that `make` creates; it must leave EEXIST where that name exists. The name
    // is not made from the target's, which may already be as long as names can be.
    template <class Make>
    bool first_free(const Make& make) {
        for (int n = 0; n < 1000; ++n) {
            std::filesystem::path candidate =
                place_.target.parent_path() / ("tiffin.part" + std::to_string(n));
            if (make(candidate.c_str())) {
                path_ = std::move(candidate);
                return true;
            }
            if (errno != EEXIST) return false;
        }
        return false;
    }
    // Creates a file, without a name where possible; returns its descriptor, or -1.
    int make();
    static std::string name_of(int descriptor) { return "/proc/self/fd/" + std::to_string(descriptor); }
    bool link_to(const char* name) const {
        return ::linkat(AT_FDCWD, name_of(::fileno(stream_.get())).c_str(), AT_FDCWD, name,
                        AT_SYMLINK_FOLLOW) == 0;
    }
    bool open_stream() {
        if (!place_.is_stream) return false;
        // A duplicated descriptor shares the file offset: it writes after what is there already.
        const int opened = place_.descriptor >= 0
                               ? ::fcntl(place_.descriptor, F_DUPFD_CLOEXEC, 0)
                               : ::open(place_.target.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
        return opened >= 0 && write_to(opened);
    }
    // Takes ownership of a descriptor.
    bool write_to(int opened) {
        stream_.reset(::fdopen(opened, "wb"));
        if (stream_) return true;
        const int error = errno;
        ::close(opened);
        errno = error;
        return false;
    }

    std::string label_;  // the path as it was given
    output_place place_;
    std::filesystem::path path_;  // the temporary name, if there is one
    detail::stream_handle stream_;
};

#if TIFFIN_ENGINES_DEFINITIONS
TIFFIN_ENGINES_INLINE result<unfinished_file> unfinished_file::begin(const std::filesystem::path& path) {
    unfinished_file made;
    made.label_ = path.string();
    auto place = output_place::of(path);
    if (!place) return place.failure();
    made.place_ = *std::move(place);
    // A pipe is opened by the first write, as opening waits for its reader.
    if (made.place_.is_stream) return {std::move(made)};
    const int opened = made.make();
    if (opened < 0 && errno == EEXIST)
        return made.refuse(
            "the file cannot be written: 1000 unfinished ones, tiffin.part0 on, lie beside it");
    if (opened < 0) return made.cannot_write();
    if (!made.write_to(opened)) return made.cannot_write();
    if (made.place_.is_there && ::fchmod(opened, made.place_.mode) != 0)
        return made.refuse("the file's mode cannot be kept: " + detail::last_reason());
    return {std::move(made)};
}

TIFFIN_ENGINES_INLINE status unfinished_file::flush() {
    if (!stream_ && !open_stream()) return cannot_write();
    if (std::fflush(stream_.get()) != 0) return cannot_write();
    // Closing may report what the file system could not write. A stream is closed, as its reader waits for that.
    const int copy = place_.is_stream ? -1 : ::dup(::fileno(stream_.get()));
    if (place_.is_stream ? std::fclose(stream_.release()) != 0 : copy < 0 || ::close(copy) != 0)
        return cannot_write();
    return {};
}

TIFFIN_ENGINES_INLINE status unfinished_file::finish() {
    if (place_.is_stream) return {};
    const char* const target = place_.target.c_str();
    if (path_.empty() && !place_.is_there && link_to(target)) return {};
    // linkat() can name a file that has no name, but only rename() replaces an existing file.
    if (path_.empty() && !first_free([&](const char* name) { return link_to(name); })) return cannot_rename();
    if (std::rename(path_.c_str(), target) != 0) return cannot_rename();
    path_.clear();
    return {};
}

TIFFIN_ENGINES_INLINE int unfinished_file::make() {
    constexpr ::mode_t usual = 0666;  // less the process's umask
    int opened = -1;
#    if defined(O_TMPFILE)
    opened = ::open(place_.folder().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, usual);
    if (opened >= 0 && ::access(name_of(opened).c_str(), F_OK) == 0) return opened;
    if (opened >= 0) ::close(opened);  // it could not be linked later
#    endif
    const bool found = first_free([&](const char* name) {
        opened = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, usual);
        return opened >= 0;
    });
    return found ? opened : -1;
}
#endif

}  // namespace io
TIFFIN_END
