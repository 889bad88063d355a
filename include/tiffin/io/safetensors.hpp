// Reading safetensors files: named tensors and string metadata, every number of them checked.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/safetensors_format.hpp>
#include <tiffin/io/safetensors_header.hpp>
#include <tiffin/tensor.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <utility>

TIFFIN_BEGIN
namespace io {

// The tensors and the metadata of one safetensors file, held in memory.
//
// The object owns the tensors' bytes: views from `tensors()` live as long as it does and survive
// its being moved. The data as a whole starts on a 64-byte boundary; a single tensor may lie at any
// alignment in a foreign file.
//
// Beyond the official reader it refuses leading space, duplicate keys, unknown fields, a null
// `__metadata__`, formats other than those of `dtype`, ranks above `shape::max_rank`, and shapes
// whose non-zero sizes overflow.
class safetensors_file {
public:
    // Reads the file at `path`.
    // Gives its tensors and metadata; `label()` is the path.
    // Errors: errc::file where the file is missing, unreadable, not a regular file or malformed,
    // errc::duplicate_tensor for a name given twice, errc::dtype for an unknown number format.
    // Cost: one read of the file, one allocation of the size of its data, made after the header
    // has been checked.
    static result<safetensors_file> open(const std::filesystem::path& path);

    // Reads a file's bytes from memory.
    // Takes the bytes, which may go away afterwards, and the name under which failures report them.
    // Errors: as for `open`.
    // Cost: one copy of the bytes.
    static result<safetensors_file> parse(std::span<const std::byte> bytes, std::string label);

    // The strings of `__metadata__`; empty where the file has none.
    [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
    // The tensors, in the order of the header; views into this object.
    [[nodiscard]] const weights& tensors() const noexcept { return tensors_; }
    // The path or name given; failures carry it as `where`, its odd bytes escaped.
    [[nodiscard]] const std::string& label() const noexcept { return label_; }

private:
    static constexpr std::align_val_t alignment{64};
    struct release {
        void operator()(std::byte* bytes) const noexcept { ::operator delete(bytes, alignment); }
    };

    safetensors_file() = default;

    // `take(to, n)` copies the next n bytes of the file and tells whether it could.
    template <class Take>
    static result<safetensors_file> load(std::uint64_t size, std::string label, const Take& take);

    std::string label_;
    std::map<std::string, std::string> metadata_;
    weights tensors_;
    std::unique_ptr<std::byte[], release> data_;
};

template <class Take>
result<safetensors_file> safetensors_file::load(std::uint64_t size, std::string label, const Take& take) {
    const auto refuse = [&](std::string what) {
        return detail::file_failure(errc::file, label, std::move(what));
    };
    constexpr std::uint64_t prefix = sizeof(std::uint64_t);
    std::uint64_t length = 0;
    if (size < prefix)
        return refuse("the file has " + std::to_string(size) + " bytes, fewer than the 8 of a header length");
    if (!take(&length, prefix)) return refuse("the header length could not be read");
    if (length > detail::header_limit)
        return refuse("the header length is " + std::to_string(length) + ", above the limit of " +
                      std::to_string(detail::header_limit));
    if (length > size - prefix)
        return refuse("the header length is " + std::to_string(length) + ", but only " +
                      std::to_string(size - prefix) + " bytes follow it");
    std::string text(length, '\0');
    if (!take(text.data(), length))
        return refuse("the " + std::to_string(length) + " bytes of header could not be read");

    const std::uint64_t data_size = size - prefix - length;
    detail::header_reader header(data_size);
    if (const status read = header.read(text); !read)
        return detail::file_failure(read.failure().code, label, read.failure().what);

    safetensors_file file;
    file.data_.reset(static_cast<std::byte*>(::operator new(data_size, alignment, std::nothrow)));
    if (!file.data_) return refuse("there is no memory for its " + std::to_string(data_size) + " data bytes");
    if (!take(file.data_.get(), data_size))
        return refuse("the " + std::to_string(data_size) + " data bytes could not be read");
    for (detail::header_reader::entry& e : header.entries) {
        e.tensor.data = file.data_.get() + e.begin;
        file.tensors_.add(std::move(e.name), e.tensor);
    }
    file.metadata_ = std::move(header.metadata);
    file.label_ = std::move(label);
    return file;
}

inline result<safetensors_file> safetensors_file::parse(std::span<const std::byte> bytes, std::string label) {
    return load(bytes.size(), std::move(label), [&](void* to, std::size_t n) {
        if (n != 0) std::memcpy(to, bytes.data(), n);
        bytes = bytes.subspan(n);
        return true;
    });
}

inline result<safetensors_file> safetensors_file::open(const std::filesystem::path& path) {
    const std::string label = path.string();
    const auto refuse = [&](std::string what) {
        return detail::file_failure(errc::file, label, std::move(what));
    };
    std::error_code error;
    const std::filesystem::file_type kind = std::filesystem::status(path, error).type();
    if (kind == std::filesystem::file_type::not_found) return refuse("there is no such file");
    if (kind == std::filesystem::file_type::none)
        return refuse("the file cannot be reached: " + detail::reason(error));
    if (kind == std::filesystem::file_type::directory) return refuse("this is a directory");
    if (kind != std::filesystem::file_type::regular) return refuse("this is not a regular file");
    const detail::stream_handle stream(std::fopen(label.c_str(), "rb"));
    if (!stream) return refuse("the file cannot be opened: " + detail::last_reason());
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    if (error) return refuse("the file's size cannot be read: " + detail::reason(error));
    return load(size, label,
                [&](void* to, std::size_t n) { return std::fread(to, 1, n, stream.get()) == n; });
}

}  // namespace io
TIFFIN_END
