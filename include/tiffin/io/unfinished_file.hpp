// A file that takes its name, and another file's place, only when it is complete.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/safetensors_format.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

TIFFIN_BEGIN
namespace io {
namespace detail {

// A file under construction; removed again unless it has been finished.
class unfinished_file {
public:
    // Begins the file that will be at `path`, in place of a regular file there (the target, where it is a
    // link), whose mode bits it gets before the first byte: what was private stays so meanwhile. The bytes go
    // to a new file tiffin.part<n> in the same folder, so that the last step is a renaming.
    //
    // Errors: errc::file where the path cannot be written or is not a regular file.
    static result<unfinished_file> begin(const std::filesystem::path& path) {
        using kinds = std::filesystem::file_type;
        unfinished_file made;
        made.label_ = path.string();
        std::error_code error;
        const std::filesystem::file_status there = std::filesystem::status(path, error);
        if (there.type() == kinds::none) return made.refuse("the file cannot be reached: " + reason(error));
        if (there.type() == kinds::directory) return made.refuse("this is a directory; it cannot be written");
        const bool replaces = there.type() == kinds::regular;
        // Renaming over a device such as /dev/null would replace the device itself.
        if (there.type() != kinds::not_found && !replaces)
            return made.refuse("this is not a regular file; it is not replaced");
        made.target_ = replaces ? std::filesystem::canonical(path, error) : path;
        if (replaces && error) return made.refuse("the file cannot be reached: " + reason(error));

        for (int n = 0; n < 1000 && !made.stream_; ++n) {
            // Not the target's name and more: that may be as long as names can be.
            std::filesystem::path candidate =
                made.target_.parent_path() / ("tiffin.part" + std::to_string(n));
            // x: an existing file is never taken over, so two writers cannot share one.
            made.stream_.reset(std::fopen(candidate.string().c_str(), "wbx"));
            if (made.stream_)
                made.path_ = std::move(candidate);
            else if (errno != EEXIST)
                return made.cannot_write();
        }
        if (!made.stream_)
            return made.refuse(
                "the file cannot be written: 1000 unfinished ones, tiffin.part0 on, lie beside it");
        if (replaces) std::filesystem::permissions(made.path_, there.permissions(), error);
        if (replaces && error) return made.refuse("the file's mode cannot be kept: " + reason(error));
        return {std::move(made)};
    }

    unfinished_file(unfinished_file&& other) noexcept { *this = std::move(other); }
    unfinished_file& operator=(unfinished_file&& other) noexcept {
        std::swap(label_, other.label_);
        std::swap(target_, other.target_);
        std::swap(path_, other.path_);
        std::swap(stream_, other.stream_);
        return *this;
    }
    ~unfinished_file() {
        std::error_code ignored;
        stream_.reset();
        if (!path_.empty()) std::filesystem::remove(path_, ignored);
    }

    // Appends bytes; false where the system refuses.
    bool write(const void* data, std::size_t n) { return std::fwrite(data, 1, n, stream_.get()) == n; }

    // Gives the file its name. Errors: errc::file where its last bytes or its name cannot be written.
    status finish() {
        // Closing writes what is still buffered and so can fail like any write.
        if (std::fflush(stream_.get()) != 0) return cannot_write();
        if (std::fclose(stream_.release()) != 0) return cannot_write();
        std::error_code error;
        std::filesystem::rename(path_, target_, error);
        if (error) return refuse("the file cannot be renamed: " + reason(error));
        path_.clear();
        return {};
    }

    // The failure of the system's call that has just failed.
    [[nodiscard]] failure cannot_write() const {
        return refuse("the file cannot be written: " + last_reason());
    }

private:
    unfinished_file() = default;
    [[nodiscard]] failure refuse(std::string what) const { return {errc::file, label_, std::move(what)}; }

    std::string label_;             // the path as it was given
    std::filesystem::path target_;  // where the file will be
    std::filesystem::path path_;    // where it is meanwhile; none before and after
    stream_handle stream_;
};

}  // namespace detail
}  // namespace io
TIFFIN_END
