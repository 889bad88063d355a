// Reads safetensors files: named tensors and string metadata, with every value checked.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/file_mapping.hpp>
#include <tiffin/io/safetensors_entry.hpp>
#include <tiffin/io/safetensors_format.hpp>
#include <tiffin/io/safetensors_header.hpp>
#include <tiffin/tensor.hpp>

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
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// The tensors and the metadata of one safetensors file, held in memory or mapped.
//
// The object owns the tensors' bytes: views from `tensors()` live as long as it does, also when it is moved. Data read
// into memory starts on a 64-byte boundary as a whole; mapped tensors, and any tensor of a file written by another
// tool, may lie at any alignment.
//
// A U8 tensor with the metadata key `<name>.format`, such as q8_0, becomes a tensor of that format, whose last axis
// counts values. U8 tensors with another format, or none, stay U8.
//
// Beyond the official reader it refuses leading space, duplicate keys, unknown fields, a null `__metadata__`, and
// shapes whose non-zero sizes overflow. It also refuses formats other than F32, F16, BF16, F8, I32, I64 and U8, and ranks
// above `shape::max_rank`, unless unread_tensors::listed: such tensors are then in unread(), offsets checked.
class safetensors_file {
public:
    // Reads the file at `path` into memory; `label()` is the path.
    // Errors: errc::file where the file is missing, unreadable, not a regular file or malformed, errc::duplicate_tensor
    //   for a name given twice, errc::dtype for an unknown format, errc::shape where rows of a U8 tensor are no whole
    //   blocks of its `.format`.
    // Cost: one read of the file, one allocation of the size of its data, made after the header has been checked.
    static result<safetensors_file> open(const std::filesystem::path& path);

    // Maps the file at `path` and reads its header; the tensors' pages are read when they are touched, and the system
    // may give them up again. For files larger than memory, or of which little is needed.
    // Precondition, errors: those of file_mapping and of `open`. Cost: that of the header.
    static result<safetensors_file> map(const std::filesystem::path& path,
                                        unread_tensors unread = unread_tensors::refused);

    // Parses the bytes of a file, which are copied; failures carry `label` as `where`.
    // Errors: as for `open`.
    // Cost: one copy of the bytes.
    static result<safetensors_file> parse(std::span<const std::byte> bytes, std::string label,
                                          unread_tensors unread = unread_tensors::refused);

    // The strings of `__metadata__`, without the `.format` keys that tensors have taken; empty where there are none.
    [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
    // The tensors, in the order of the header; views into this object.
    [[nodiscard]] const weights& tensors() const noexcept { return tensors_; }
    // Tensors that are not read, in the order of the header.
    [[nodiscard]] const std::vector<unread_safetensor>& unread() const noexcept { return unread_; }
    // The mapping, empty after open() and parse(): a tensor begins at file offset data - mapping().bytes().data().
    [[nodiscard]] const file_mapping& mapping() const noexcept { return mapped_; }
    // The path or name given; failures carry it as `where`.
    [[nodiscard]] const std::string& label() const noexcept { return label_; }

private:
    static constexpr std::align_val_t alignment{64};
    struct release {
        void operator()(std::byte* bytes) const noexcept { ::operator delete(bytes, alignment); }
    };

    safetensors_file() = default;

    // load_head() reads the header, load() the whole file. `take(to, n)` copies the next n bytes of the file and
    // returns whether it could.
    template <class Take>
    static result<safetensors_file> load_head(std::uint64_t size, std::string label, unread_tensors unread,
                                              const Take& take);
    template <class Take>
    static result<safetensors_file> load(std::uint64_t size, std::string label, unread_tensors unread,
                                         const Take& take);
    // Sets the tensors' data pointers.
    void place(const std::byte* data) {
        for (detail::safetensors_entry& e : entries_) {
            if (!e.is_read) {
                unread_.push_back(std::move(e.unread));
                continue;
            }
            e.tensor.data = data + e.begin;
            tensors_.add(std::move(e.name), e.tensor);
        }
        entries_.clear();
    }

    std::string label_;
    std::map<std::string, std::string> metadata_;
    weights tensors_;
    std::vector<unread_safetensor> unread_;
    std::vector<detail::safetensors_entry> entries_;  // until place()
    std::uint64_t data_size_ = 0;
    std::unique_ptr<std::byte[], release> data_;
    file_mapping mapped_;
};

#if TIFFIN_ENGINES_DEFINITIONS
template <class Take>
result<safetensors_file> safetensors_file::load_head(std::uint64_t size, std::string label,
                                                     unread_tensors unread, const Take& take) {
    const auto refuse = [&](std::string what) { return failure(errc::file, label, std::move(what)); };
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
    auto header = detail::read_header(text, data_size, unread);
    if (!header) return failure(header.failure().code, label, header.failure().what);

    safetensors_file file;
    file.entries_ = std::move(header->entries);
    file.data_size_ = data_size;
    file.metadata_ = std::move(header->metadata);
    file.label_ = std::move(label);
    return {std::move(file)};
}

template <class Take>
result<safetensors_file> safetensors_file::load(std::uint64_t size, std::string label, unread_tensors unread,
                                                const Take& take) {
    auto file = load_head(size, std::move(label), unread, take);
    if (!file) return file;
    const std::uint64_t bytes = file->data_size_;
    const auto refuse = [&](const std::string& what) { return failure(errc::file, file->label_, what); };
    file->data_.reset(static_cast<std::byte*>(::operator new(bytes, alignment, std::nothrow)));
    if (!file->data_) return refuse("there is no memory for its " + std::to_string(bytes) + " data bytes");
    if (!take(file->data_.get(), bytes))
        return refuse("the " + std::to_string(bytes) + " data bytes could not be read");
    file->place(file->data_.get());
    return file;
}

TIFFIN_ENGINES_INLINE result<safetensors_file> safetensors_file::parse(std::span<const std::byte> bytes,
                                                                       std::string label,
                                                                       unread_tensors unread) {
    return load(bytes.size(), std::move(label), unread, [&](void* to, std::size_t n) {
        if (n != 0) std::memcpy(to, bytes.data(), n);
        bytes = bytes.subspan(n);
        return true;
    });
}

TIFFIN_ENGINES_INLINE result<safetensors_file> safetensors_file::open(const std::filesystem::path& path) {
    const std::string label = path.string();
    const auto refuse = [&](std::string what) { return failure(errc::file, label, std::move(what)); };
    const result<std::uint64_t> size = detail::regular_file_size(path);
    if (!size) return size.failure();
    const detail::stream_handle stream(std::fopen(label.c_str(), "rb"));
    if (!stream) return refuse("the file cannot be opened: " + detail::last_reason());
    return load(*size, label, unread_tensors::refused,
                [&](void* to, std::size_t n) { return std::fread(to, 1, n, stream.get()) == n; });
}

TIFFIN_ENGINES_INLINE result<safetensors_file> safetensors_file::map(const std::filesystem::path& path,
                                                                     unread_tensors unread) {
    result<file_mapping> mapped = file_mapping::open(path);
    if (!mapped) return mapped.failure();
    const std::span<const std::byte> bytes = mapped->bytes();
    std::size_t done = 0;
    auto file = load_head(bytes.size(), path.string(), unread, [&](void* to, std::size_t n) {
        std::memcpy(to, bytes.data() + done, n);
        done += n;
        return true;
    });
    if (!file) return file;
    file->place(bytes.data() + done);
    file->mapped_ = *std::move(mapped);
    return file;
}
#endif

}  // namespace io
TIFFIN_END
