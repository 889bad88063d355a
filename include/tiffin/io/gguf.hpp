// Reads GGUF files: memory-mapped tensors, and metadata.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/file_mapping.hpp>
#include <tiffin/io/gguf_header.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// A tensor in a format that is not read: its name, ggml's number of the format, its shape.
struct unread_tensor {
    std::string name;
    std::uint32_t type;
    tiffin::shape shape;
};

// The tensors and the metadata of one GGUF file (version 2 or 3), mapped: pages are read when they are touched, and the
// system may give them up again.
//
// Views from tensors() and texts from metadata() live as long as the object does, also when it is moved.
// Shapes have the outermost axis first: ggml's dimensions from last to first.
// Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
class gguf_file {
public:
    // Precondition: that of file_mapping. Cost: that of the header.
    // Errors: errc::file where the file is missing, no regular file, truncated or malformed, of another version or byte
    //   order, or where a tensor lies beyond its end or overlaps another; errc::duplicate_tensor; errc::shape where
    //   sizes overflow, rows are no whole blocks, or a tensor has more than four axes, ggml's limit.
    static result<gguf_file> open(const std::filesystem::path& path) {
        auto mapped = file_mapping::open(path);
        if (!mapped) return mapped.failure();
        auto made = read(mapped->bytes(), path.string());
        if (made) made->mapped_ = *std::move(mapped);
        return made;
    }
    // The same for bytes in memory, which must outlive the object.
    static result<gguf_file> read(std::span<const std::byte> bytes, std::string label) {
        detail::gguf_header header;
        if (const status s = header.read(bytes); !s)
            return failure(s.failure().code, label, s.failure().what);
        gguf_file made;
        made.label_ = std::move(label);
        made.version_ = header.version;
        made.begin_ = bytes.data();
        made.metadata_ = std::move(header.metadata);
        for (detail::gguf_header::entry& e : header.entries) {
            if (!e.is_read) {
                made.unread_.push_back({std::string(e.name), e.type, e.tensor.shape});
                continue;
            }
            e.tensor.data = bytes.data() + header.data_begin + e.begin;
            made.tensors_.add(std::string(e.name), e.tensor);
        }
        return {std::move(made)};
    }

    [[nodiscard]] std::uint32_t version() const noexcept { return version_; }
    [[nodiscard]] const std::map<std::string_view, gguf_value, std::less<>>& metadata() const noexcept {
        return metadata_;
    }
    // In the order of the file.
    [[nodiscard]] const weights& tensors() const noexcept { return tensors_; }
    // The byte of the file at which one of them begins.
    [[nodiscard]] std::uint64_t offset_of(const tensor_view& tensor) const noexcept {
        return static_cast<std::uint64_t>(static_cast<const std::byte*>(tensor.data) - begin_);
    }
    // Tensors whose format is none of dtype.
    [[nodiscard]] const std::vector<unread_tensor>& unread() const noexcept { return unread_; }
    // The path or name given; failures carry it as `where`.
    [[nodiscard]] const std::string& label() const noexcept { return label_; }

    // The value of a key as T: std::uint64_t, double, bool, std::string_view or gguf_array; none where it is missing or
    // of another type. Non-negative integers are available as std::uint64_t, all numbers as double.
    template <class T>
    [[nodiscard]] std::optional<T> find(std::string_view key) const {
        const auto at = metadata_.find(key);
        if (at == metadata_.end()) return std::nullopt;
        if (const T* const value = std::get_if<T>(&at->second)) return *value;
        if constexpr (std::is_same_v<T, std::uint64_t>)
            if (const auto* const n = std::get_if<std::int64_t>(&at->second); n != nullptr && *n >= 0)
                return static_cast<std::uint64_t>(*n);
        if constexpr (std::is_same_v<T, double>) {
            if (const auto* const n = std::get_if<std::uint64_t>(&at->second)) return static_cast<double>(*n);
            if (const auto* const n = std::get_if<std::int64_t>(&at->second)) return static_cast<double>(*n);
        }
        return std::nullopt;
    }

private:
    gguf_file() = default;

    std::string label_;
    const std::byte* begin_ = nullptr;  // of the file
    std::uint32_t version_ = 0;
    std::map<std::string_view, gguf_value, std::less<>> metadata_;
    weights tensors_;
    std::vector<unread_tensor> unread_;
    file_mapping mapped_;
};

}  // namespace io
TIFFIN_END
