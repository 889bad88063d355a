// What the reader and the writer of safetensors files share: limits, sizes and the words of errors.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/tensor.hpp>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

TIFFIN_BEGIN
namespace io {

static_assert(std::endian::native == std::endian::little && sizeof(std::size_t) == 8,
              "safetensors data is used as it lies in the file: little-endian, 64-bit sizes");

namespace detail {

// The official limit: parsing a larger header would only serve a hostile file.
inline constexpr std::uint64_t header_limit = 100'000'000;
inline constexpr std::string_view metadata_key = "__metadata__";

// Names come from files: an error stays one short line of ASCII whatever they hold.
inline std::string printable(std::string_view text, std::size_t limit = 96) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string out;
    for (const char c : text.substr(0, limit)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7F) {
            out += c;
        } else {
            out += "\\x";
            out += digits[byte >> 4];
            out += digits[byte & 15u];
        }
    }
    if (text.size() > limit) out += "... (" + std::to_string(text.size()) + " bytes)";
    return out;
}

inline std::string in_quotes(std::string_view name) {
    std::string out = "'";  // appended to: g++ 12 warns without cause of the temporaries of a + b
    out += printable(name);
    out += '\'';
    return out;
}

inline failure file_failure(errc code, std::string_view label, std::string what) {
    return {code, printable(label, 4096), std::move(what)};
}

inline std::string reason(const std::error_code& error) {
    return printable(error.message());
}

// The reason of a C call that has just failed.
inline std::string last_reason() {
    return reason({errno, std::generic_category()});
}

// Errors: errc::file where there is no regular file at `path`.
inline result<std::uint64_t> regular_file_size(const std::filesystem::path& path) {
    const auto refuse = [&](std::string what) {
        return file_failure(errc::file, path.string(), std::move(what));
    };
    std::error_code error;
    const std::filesystem::file_type kind = std::filesystem::status(path, error).type();
    if (kind == std::filesystem::file_type::not_found) return refuse("there is no such file");
    if (kind == std::filesystem::file_type::none)
        return refuse("the file cannot be reached: " + reason(error));
    if (kind == std::filesystem::file_type::directory) return refuse("this is a directory");
    if (kind != std::filesystem::file_type::regular) return refuse("this is not a regular file");
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    if (error) return refuse("the file's size cannot be read: " + reason(error));
    return std::uint64_t{size};
}

// The bytes of a dense tensor, or nothing where the count overflows. A zero size does not excuse
// the others: the product of any of the sizes is safe to form afterwards.
inline std::optional<std::uint64_t> byte_count(dtype type, const tiffin::shape& sizes) noexcept {
    std::uint64_t product = size_of(type);
    bool empty = false;
    for (std::size_t axis = 0; axis < sizes.rank(); ++axis) {
        const std::uint64_t size = sizes[axis];
        if (size == 0) {
            empty = true;
            continue;
        }
        if (product > std::numeric_limits<std::uint64_t>::max() / size) return std::nullopt;
        product *= size;
    }
    return empty ? 0 : product;
}

struct close_stream {
    void operator()(std::FILE* stream) const noexcept { std::fclose(stream); }
};
using stream_handle = std::unique_ptr<std::FILE, close_stream>;

}  // namespace detail
}  // namespace io
TIFFIN_END
