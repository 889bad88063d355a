// Shared by the reader and the writer of safetensors files: limits, formats, sizes and texts of errors.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/quoted.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
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

// The end of the metadata key that holds the format of a block-quantised tensor. safetensors has no such dtype, so it
// is stored as U8, and its last axis counts the bytes of a row. The value is the
// format's name in lower case: q8_0, q4_k, iq4_nl.
inline constexpr std::string_view format_suffix = ".format";

inline std::string format_key(std::string_view tensor) {
    return std::string(tensor).append(format_suffix);
}

namespace detail {

// The official limit: parsing a larger header would only serve a hostile file.
inline constexpr std::uint64_t header_limit = 100'000'000;
inline constexpr std::string_view metadata_key = "__metadata__";

using tiffin::detail::in_quotes;
using tiffin::detail::printable;

inline std::string reason(const std::error_code& error) {
    return printable(error.message());
}

// The text of errno, after a C call that has just failed.
inline std::string last_reason() {
    return reason({errno, std::generic_category()});
}

// Errors: errc::file where there is no regular file at `path`.
inline result<std::uint64_t> regular_file_size(const std::filesystem::path& path) {
    const auto refuse = [&](std::string what) { return failure(errc::file, path.string(), std::move(what)); };
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

struct block_format {
    dtype type;
    std::string_view name;
};
inline constexpr std::array<block_format, 15> block_formats{{{dtype::q8_0, "q8_0"},
                                                             {dtype::q4_0, "q4_0"},
                                                             {dtype::q4_1, "q4_1"},
                                                             {dtype::q5_0, "q5_0"},
                                                             {dtype::q5_1, "q5_1"},
                                                             {dtype::q2_k, "q2_k"},
                                                             {dtype::q3_k, "q3_k"},
                                                             {dtype::q4_k, "q4_k"},
                                                             {dtype::q5_k, "q5_k"},
                                                             {dtype::q6_k, "q6_k"},
                                                             {dtype::iq4_nl, "iq4_nl"},
                                                             {dtype::iq4_xs, "iq4_xs"},
                                                             {dtype::mxfp4, "mxfp4"},
                                                             {dtype::nvfp4, "nvfp4"},
                                                             {dtype::u4, "u4"}}};

// The block format of a metadata value; none where it is unknown.
inline std::optional<dtype> block_format_of(std::string_view name) noexcept {
    for (const block_format& format : block_formats)
        if (name == format.name) return format.type;
    return std::nullopt;
}

// The metadata value of a block format. Precondition: one of block_formats.
inline std::string_view format_name(dtype type) noexcept {
    return std::find_if(block_formats.begin(), block_formats.end(),
                        [&](const block_format& format) { return format.type == type; })
        ->name;
}

inline std::string known_formats() {
    std::string all;
    for (const block_format& format : block_formats) all.append(all.empty() ? "" : ", ").append(format.name);
    return all;
}

inline tiffin::shape with_last_axis(const tiffin::shape& sizes, std::size_t last) noexcept {
    tiffin::shape made;
    for (std::size_t axis = 0; axis + 1 < sizes.rank(); ++axis) made.push_back(sizes[axis]);
    made.push_back(last);
    return made;
}

inline bool is_whole_blocks(dtype type, const tiffin::shape& sizes) noexcept {
    return block_of(type) == 1 || (sizes.rank() > 0 && sizes[sizes.rank() - 1] % block_of(type) == 0);
}

// The dtype and the shape of a tensor in the file. Precondition: whole blocks.
inline dtype stored_type(dtype type) noexcept {
    return block_of(type) == 1 ? type : dtype::u8;
}
inline tiffin::shape stored_shape(dtype type, const tiffin::shape& sizes) noexcept {
    return block_of(type) == 1 ? sizes : with_last_axis(sizes, bytes_of(type, sizes[sizes.rank() - 1]));
}

// The bytes of a tensor; none where they or its number of values overflow. The other sizes must not overflow even where
// one is 0: the product of any of them is safe to form afterwards. Precondition: whole blocks.
inline std::optional<std::uint64_t> byte_count(dtype type, const tiffin::shape& sizes) noexcept {
    // A block of q4_0 has fewer bytes than values; the larger count is checked.
    const std::uint64_t block = block_of(type), unit = std::max<std::uint64_t>(size_of(type), block);
    std::uint64_t product = unit;
    bool empty = false;
    for (std::size_t axis = 0; axis < sizes.rank(); ++axis) {
        const std::uint64_t size = axis + 1 < sizes.rank() ? sizes[axis] : sizes[axis] / block;
        if (size == 0) {
            empty = true;
            continue;
        }
        if (product > std::numeric_limits<std::uint64_t>::max() / size) return std::nullopt;
        product *= size;
    }
    return empty ? 0 : product / unit * size_of(type);
}

// Turns a U8 tensor that has a `.format` key into a tensor of that block format, and removes the key from the metadata.
// Leaves other tensors, and unknown formats, as they are.
// Errors: errc::shape where rows are no whole blocks, errc::file where the number of values overflows.
inline status take_format(std::string_view name, tensor_view& tensor,
                          std::map<std::string, std::string>& metadata) {
    if (tensor.type != dtype::u8) return {};
    const auto told = metadata.find(format_key(name));
    const auto type = told == metadata.end() ? std::nullopt : block_format_of(told->second);
    if (!type) return {};
    const auto refuse = [&](errc code, const std::string& what) {
        return failure(code, "", "tensor ", in_quotes(name), " is ", format_name(*type),
                       " in bytes of shape ", to_string(tensor.shape), ": ", what);
    };
    const std::size_t rank = tensor.shape.rank();
    if (rank == 0 || tensor.shape[rank - 1] % size_of(*type) != 0)
        return refuse(errc::shape,
                      "rows are no whole blocks of " + std::to_string(size_of(*type)) + " bytes");
    const std::size_t blocks = tensor.shape[rank - 1] / size_of(*type), block = block_of(*type);
    const bool fits = blocks <= std::numeric_limits<std::size_t>::max() / block;
    const tiffin::shape numbers = with_last_axis(tensor.shape, fits ? blocks * block : 0);
    if (!fits || !byte_count(*type, numbers)) return refuse(errc::file, "its numbers overflow 64 bits");
    tensor.type = *type;
    tensor.shape = numbers;
    metadata.erase(told);
    return {};
}

struct close_stream {
    void operator()(std::FILE* stream) const noexcept { std::fclose(stream); }
};
using stream_handle = std::unique_ptr<std::FILE, close_stream>;

}  // namespace detail
}  // namespace io
TIFFIN_END
